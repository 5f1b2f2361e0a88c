"""TCP ports of the machine's own network, offered at a site's address.

A socket stays in the network namespace that it was made in, whoever holds it. So the relay's
process, in the machine's network, accepts at a socket that was made inside a site's namespace, and
connects from its own. It needs no privilege, and what other sites send to it crosses their links
to that site.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys

from netem.errors import RelayLost
from netem.interpreter import python_main
from netem.sockets import hung_up, signal_when_hung_up

START_S = 10.0
_CHUNK_BYTES = 1 << 16
_ADDRESS_BYTES = 512
_READY = b"r"


class Relay:
    """A relay's process, which this one has started; made by `start_relay`.

    Attributes
    ----------
    pid
        Of the process.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, to: tuple[str, int]
    ) -> None:
        self.pid = process.pid
        self._to = to
        self._process = process
        self._control = control

    @property
    def lost(self) -> bool:
        """Whether the process has ended."""
        return hung_up(self._control)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the process ends, and only then."""
        return self._control.fileno()

    def signal_when_lost(self, number: signal.Signals) -> None:
        """Have the kernel send this process a signal when the relay ends; `serve` may bring one.

        None comes if it had ended before: look at `lost` afterwards.
        """
        signal_when_hung_up(self._control, number)

    def serve(
        self,
        listener: socket.socket,
        to: tuple[str, int] | None = None,
        timeout_s: float = START_S,
    ) -> None:
        """Let the relay accept at a listening TCP socket, which stays open here too.

        It may be called for several sockets, one after the other.

        Parameters
        ----------
        listener
            The socket.
        to
            Host and port that its connections are passed on to; None for those of `start_relay`.
        timeout_s
            How long the relay may take to answer.

        Raises
        ------
        netem.errors.RelayLost
            It has ended, or does not answer in time.
        """
        self._control.settimeout(timeout_s)
        try:
            host, port = to or self._to
            socket.send_fds(self._control, [f"{host} {port}".encode()], [listener.fileno()])
            if self._control.recv(1) == _READY:
                return
            reason = "has ended"
        except TimeoutError:
            reason = f"did not answer within {timeout_s:g} s"
        except OSError as error:
            reason = f"has ended: {error.strerror}"
        raise RelayLost(f"the relay (process {self.pid}) {reason}")

    def close(self) -> None:
        """End the relay, and its connections."""
        self._control.close()
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_relay(to: tuple[str, int]) -> Relay:
    """Start a relay in the network of the calling process; it ends when that process does.

    Parameters
    ----------
    to
        Host and port that connections are passed on to where `Relay.serve` names no others.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*python_main("netem.relay"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Signals to a job's process group are not for the relay: it ends after the job.
            start_new_session=True,
        )
    return Relay(process, ours, to)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what is read, and then the end of it."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _pass_on(
    to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one connection; when either end breaks, so does the other."""
    try:
        there_reader, there_writer = await asyncio.open_connection(*to)
    except OSError:
        _reset(writer)
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, there_writer))
            both.create_task(_copy(there_reader, writer))
    except* OSError:
        _reset(writer)
        _reset(there_writer)
    finally:
        writer.close()
        there_writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection, so that its peer does not take it for one that has ended well."""
    at_once = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.transport.abort()


async def _serve(control: socket.socket) -> None:
    """Offer one port after the other, until the process that has started this one has ended."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)
    servers = []
    while True:
        data, fds, _, _ = await _receive(loop, control)
        if not data or not fds:
            break
        host, port = data.decode().rsplit(" ", 1)
        listener = socket.socket(fileno=fds[0])
        listener.setblocking(False)
        servers.append(await _offer(listener, (host, int(port))))
        await loop.sock_sendall(control, _READY)
    for server in servers:
        server.close()


async def _offer(listener: socket.socket, to: tuple[str, int]) -> asyncio.Server:
    served = set()  # the loop itself does not keep tasks alive that wait for each other alone

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        served.add(task)
        # At its end the relay cancels what is open, which asyncio would report as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await _pass_on(to, reader, writer)
        served.discard(task)

    return await asyncio.start_server(accepted, sock=listener)


async def _receive(
    loop: asyncio.AbstractEventLoop, control: socket.socket
) -> tuple[bytes, list[int], int, object]:
    readable = asyncio.Event()
    loop.add_reader(control, readable.set)
    await readable.wait()
    loop.remove_reader(control)
    return socket.recv_fds(control, _ADDRESS_BYTES, 1, socket.MSG_CMSG_CLOEXEC)


def main(arguments: list[str]) -> int:
    """Run a relay; its argument is the number of its control socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    (control_fd,) = arguments
    control = socket.socket(fileno=int(control_fd))
    os.set_inheritable(control.fileno(), False)
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(control))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
