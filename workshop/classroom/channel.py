"""The line between a check and the process of a learner's code: questions, answers, and questions
back, for several threads at a time.

A frame is a length, a JSON text and buffers. Each thread of the check has a partner on the other
side, so that ranks which are threads of a check can wait for each other inside the learner's
function.
The check's side (`trusted`) serves only what the check itself has handed over.
"""

from __future__ import annotations

import builtins
import itertools
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from workshop.checks.compare import Wrong
from workshop.classroom.remote import OPERATIONS, Remote, operate
from workshop.classroom.values import Decoder, Encoder, Malformed

MAX_FRAME = 2**28
MAX_BUFFERS = 10_000
MAIN = "main"
HEAD = struct.Struct("<QI")


class Gone(BaseException):
    """The other side has ended, said something that makes no sense, or taken too long."""


class Channel:
    """One side of the line. `trusted` is the check's; `place(error)` tells where in the learner's
    code an error arose."""

    def __init__(
        self,
        line: socket.socket, trusted: bool,
        place: Callable[[BaseException], str] = lambda e: "",
    ) -> None:  # fmt: skip
        self.line, self.trusted, self.place = line, trusted, place
        self.deadline = float("inf")
        self.closed = ""  # why, once it is
        self._objects: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._raised: dict[int, BaseException] = {}
        self._queues: dict[str, queue.SimpleQueue[Any]] = {MAIN: queue.SimpleQueue()}
        self._own = threading.local()
        self._own.key = MAIN
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self._reader.start()

    def hand_over(self, number: int, value: Any) -> None:
        """Give an object of this side a number that the other side knows."""
        self._objects[number] = value

    def object(
        self, number: int, is_callable: bool = False, about: Mapping[str, str] | None = None
    ) -> Any:
        """What stands for an object of the other side that has such a number."""
        return Remote.of(self, number, is_callable, about or {})

    def close(self) -> None:
        """End the line, and wait for its thread."""
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._reader.join()
        self.line.close()

    # --- frames -----------------------------------------------------------------------------------

    def _send(self, message: dict[str, Any], encoder: Encoder | None = None) -> None:
        buffers = encoder.buffers if encoder else []
        text = json.dumps(message | {"sizes": [len(b) for b in buffers]}).encode()
        total = len(text) + sum(map(len, buffers))
        if total > MAX_FRAME:
            raise ValueError(f"a value of {total / 2**20:.0f} MiB is more than fits through")
        try:
            with self._lock:
                self.line.sendall(HEAD.pack(total, len(text)) + text)
                for data in buffers:
                    self.line.sendall(data)
        except OSError:
            raise Gone("its process ended") from None

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.line.recv(min(size - len(parts), 2**20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _read(self) -> None:
        try:
            while True:
                total, size = HEAD.unpack(self._receive(HEAD.size))
                if not size <= total <= MAX_FRAME:
                    raise Malformed("a frame of an impossible size")
                message = json.loads(self._receive(size))
                sizes = message["sizes"]
                if len(sizes) > MAX_BUFFERS or any(type(n) is not int or n < 0 for n in sizes):
                    raise Malformed("buffers of an impossible size")
                if size + sum(sizes) != total:
                    raise Malformed("sizes that do not add up")
                self._take(message, [self._receive(n) for n in sizes])
        except (EOFError, OSError):
            self.stop("its process ended")
        except Exception as problem:
            self.stop(f"it wrote to the line of the check ({type(problem).__name__})")

    def _take(self, message: dict[str, Any], buffers: list[bytes]) -> None:
        key = str(message["thread"])
        if key not in self._queues:
            if self.trusted:
                raise Malformed("a message for nobody")
            self._queues[key] = queue.SimpleQueue()
            threading.Thread(target=self.serve, args=(key,), daemon=True).start()
        self._queues[key].put((message, buffers))

    def stop(self, why: str) -> None:
        """Let everybody who waits know that it is over."""
        self.closed = self.closed or why
        for each in list(self._queues.values()):
            each.put(None)

    # --- values -----------------------------------------------------------------------------------

    def keep(self, value: Any) -> int:
        for number, kept in self._objects.items():
            if kept is value:
                return number
        number = next(self._numbers)
        self._objects[number] = value
        return number

    def number_there(self, value: Any) -> int | None:
        if isinstance(value, Remote) and object.__getattribute__(value, "_channel") is self:
            return int(object.__getattribute__(value, "_number"))
        return None

    def here(self, number: int) -> Any:
        if number not in self._objects:
            raise Malformed("an object that was never handed over")
        return self._objects[number]

    # --- questions --------------------------------------------------------------------------------

    def ask(self, operation: str, *values: Any) -> Any:
        """Have the other side do something; returns its value, or raises what it raised."""
        key = getattr(self._own, "key", None)
        if key is None:
            if not self.trusted:
                raise RuntimeError("what the check has handed over works in its own threads only")
            key = self._own.key = f"t{next(self._keys)}"
            self._queues[key] = queue.SimpleQueue()
        if self.closed:
            raise Gone(self.closed)
        encoder = Encoder(self)
        code = encoder.encode(list(values))
        self._send({"thread": key, "kind": "ask", "do": operation, "values": code}, encoder)
        while True:
            message, buffers = self._next(key)
            if message.get("kind") == "ask":
                self._answer(key, message, buffers)
            elif message.get("kind") == "value":
                try:
                    return Decoder(self, buffers).decode(message.get("value"))
                except Malformed as problem:
                    raise self._bad(problem) from None
            else:
                raise self._error(message)

    def _bad(self, problem: Malformed) -> Gone:
        self.stop(f"it wrote to the line of the check ({problem})")
        return Gone(self.closed)

    def _next(self, key: str) -> tuple[dict[str, Any], list[bytes]]:
        left = self.deadline - time.monotonic()
        try:
            item = self._queues[key].get(timeout=None if left == float("inf") else max(0.0, left))
        except queue.Empty:
            self.stop("time")
            raise Gone("time") from None
        if item is None:
            raise Gone(self.closed)
        found: tuple[dict[str, Any], list[bytes]] = item
        return found

    def serve(self, key: str = MAIN) -> None:
        """Answer questions until the line ends."""
        self._own.key = key
        while True:
            try:
                message, buffers = self._next(key)
                self._answer(key, message, buffers)
            except Gone:
                return

    def _answer(self, key: str, message: dict[str, Any], buffers: list[bytes]) -> None:
        encoder = Encoder(self)
        try:
            values = Decoder(self, buffers).decode(message.get("values"))
            result = encoder.encode(self._do(str(message.get("do")), values))
            reply = {"thread": key, "kind": "value", "value": result}
        except (Gone, Malformed):
            raise
        except BaseException as error:
            encoder, reply = Encoder(self), self._told(error) | {"thread": key}
        try:
            self._send(reply, encoder)
        except ValueError as error:  # too large
            self._send(self._told(error) | {"thread": key})

    def _do(self, operation: str, values: list[Any]) -> Any:
        if operation not in OPERATIONS:
            raise Malformed(f"no operation {operation[:20]!r}")
        return operate(operation, values[0], values[1:], guarded=self.trusted)

    # --- errors -----------------------------------------------------------------------------------

    def _told(self, error: BaseException) -> dict[str, Any]:
        """An error as a message. What came from the other side goes back as itself."""
        if self.trusted:
            number = next(self._numbers)
            self._raised[number] = error
        else:
            number = getattr(error, "_came_from", 0)
        if isinstance(error, Wrong):  # from a part of a check that runs beside the answer
            return {"kind": "raise", "wrong": [_safe(error.diagnosis), _safe(error.remedy)]}
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        names = [c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"]
        return {"kind": "raise", "name": type(error).__name__, "names": names[:8], "text":
                _safe(text), "place": "" if self.trusted else self.place(error),
                "number": number}  # fmt: skip

    def _error(self, message: dict[str, Any]) -> BaseException:
        """The error of a message, as one of Python's own, or of a class made for it."""
        number = message.get("number")
        if self.trusted and "wrong" in message:
            diagnosis, remedy = (str(text)[:2000] for text in message["wrong"])
            return Wrong(diagnosis, remedy)
        if self.trusted and type(number) is int and number in self._raised:
            return self._raised[number]
        text, name = str(message.get("text"))[:2000], str(message.get("name"))[:80]
        base: type[BaseException] = RuntimeError
        for each in message.get("names") or []:
            known = getattr(builtins, str(each), None)
            if isinstance(known, type) and issubclass(known, Exception | SystemExit):
                base = known
                break
        made = base if base.__name__ == name else type(name, (base,), {"__module__": "answer"})
        try:
            error: BaseException = made(text)
        except Exception:
            error = type(name, (RuntimeError,), {})(text)
        if self.trusted:
            error.learners_place = str(message.get("place"))[:500]  # type: ignore[attr-defined]
        elif type(number) is int:
            error._came_from = number  # type: ignore[attr-defined]
        return error


def _safe(value: Any) -> str:
    try:
        return str(value)[:2000]
    except BaseException as problem:
        return f"a message that cannot be shown ({type(problem).__name__})"
