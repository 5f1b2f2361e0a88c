/* Lets User-Mode Linux 6.1 run on processors whose saved state is larger than it knows of.
 *
 * linux.uml reads a traced process' extended registers into 2,696 bytes. With AMX the kernel keeps
 * some 11,000, and refuses to write back fewer ("ptrace set fp regs failed, errno = 14"). This
 * library, given by LD_PRELOAD, stands between: it writes back the full size, with the components
 * that did not fit in their initial state. No guest program has those in use, since a guest kernel
 * of that age grants no permission for AMX.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

#define HEADER 512       /* offset of XSTATE_BV in the standard format */
#define TILE_DATA 18     /* the component that lies beyond what linux.uml holds */
#define LARGEST 65536

typedef long (*ptrace_function)(enum __ptrace_request, ...);

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_function real;
	static unsigned char whole[LARGEST];
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);
	if (real == NULL)
		real = (ptrace_function)dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || (uintptr_t)address != NT_X86_XSTATE)
		return real(request, pid, address, data);

	struct iovec *given = data;
	struct iovec full = {.iov_base = whole, .iov_len = sizeof whole};
	if (real(PTRACE_GETREGSET, pid, address, &full) < 0)
		return -1;
	if (full.iov_len <= given->iov_len)
		return real(request, pid, address, data);
	memcpy(whole, given->iov_base, given->iov_len);
	uint64_t components;
	memcpy(&components, whole + HEADER, sizeof components);
	components &= ((uint64_t)1 << TILE_DATA) - 1;
	memcpy(whole + HEADER, &components, sizeof components);
	return real(request, pid, address, &full);
}
