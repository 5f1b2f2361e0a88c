"""A link for datagrams between sockets of this machine: a thread that delays and paces them."""

import heapq
import select
import socket
import threading
import time

WIRE_BYTES = 28


class Link:
    """Forwards from its own port to an endpoint, and back.

    Parameters
    ----------
    endpoint
        Of the prober behind it.
    delay_s
        One way, both ways.
    rate
        Towards the prober, bytes per second.
    drop
        Says of each datagram towards the prober, by its number, whether it is lost.
    """

    def __init__(self, endpoint, *, delay_s=0.0, rate=None, drop=lambda number: False):
        place, self._token = endpoint.split("/")
        host, port = place.split(":")
        self._target = (host, int(port))
        self._delay_s, self._rate, self._drop = delay_s, rate, drop
        self.carried = 0
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for one in self._sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            one.bind(("127.0.0.1", 0))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    @property
    def endpoint(self):
        return f"127.0.0.1:{self._sockets[0].getsockname()[1]}/{self._token}"

    def _carry(self):
        near, far = self._sockets
        back_to, free_s, order = None, 0.0, 0
        held = []
        while not self._done.is_set():
            wait_s = held[0][0] - time.monotonic() if held else 0.02
            for one in select.select([near, far], [], [], min(max(wait_s, 0), 0.02))[0]:
                data, sender = one.recvfrom(2048)
                now_s = time.monotonic()
                order += 1
                if one is far:
                    heapq.heappush(held, (now_s + self._delay_s, order, near, data, back_to))
                    continue
                back_to = sender
                self.carried += 1
                if self._drop(self.carried):
                    continue
                if self._rate is not None:
                    free_s = max(free_s, now_s) + (len(data) + WIRE_BYTES) / self._rate
                arrives_s = max(free_s, now_s) + self._delay_s
                heapq.heappush(held, (arrives_s, order, far, data, self._target))
            while held and held[0][0] <= time.monotonic():
                _, _, out, data, to = heapq.heappop(held)
                out.sendto(data, to)

    def close(self):
        self._done.set()
        self._thread.join()
        for one in self._sockets:
            one.close()
