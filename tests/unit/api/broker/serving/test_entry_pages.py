"""Pages that threads read: none is lost when its caller stops waiting; the reader is closed when no thread reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from api.broker.serving.entry_pages import EntryPages, Page
from api.broker.threads import Pool
from storage.entries.rebuild import DeliverableEntry
from storage.errors import Unavailable
from storage.reading.entry_reader import EntryReader


def entry(offset: int) -> DeliverableEntry:
    return DeliverableEntry(1, offset, offset, 1, b"x", 1, False)


class Reader:
    """Gives an entry a read, up to `end`; fails once at each offset of `failing`."""

    def __init__(self, end: int, *failing: int) -> None:
        self.next_offset = 0
        self.end = end
        self.failing = set(failing)
        self.closed = 0
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self) -> list[DeliverableEntry]:
        self.may_read.wait(30)
        if self.next_offset in self.failing:
            self.failing.remove(self.next_offset)
            raise Unavailable("the store does not answer", "wait")
        if self.next_offset == self.end:
            return []
        self.next_offset += 1
        return [entry(self.next_offset - 1)]

    def advance_to(self, offset: int) -> None:
        self.next_offset = offset

    def close(self) -> None:
        self.closed += 1


class Threads:
    """A pool; a caller waits no longer than until `gives_up`."""

    def __init__(self) -> None:
        self.gives_up: asyncio.Event | None = None
        self.running: list[asyncio.Future[Any]] = []

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        future = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self.running.append(future)
        if self.gives_up is not None:
            await self.gives_up.wait()
            raise Unavailable("has not answered", "try again")
        return await asyncio.shield(future)


def offsets(page: tuple[list[DeliverableEntry], int | None]) -> list[int]:
    return [item.offset for item in page[0]]


def pages_of(reader: Reader, pool: Threads) -> EntryPages:
    return EntryPages(cast(Pool, pool), lambda: cast(EntryReader, reader))


async def cancelled_read(reader: Reader, pool: Threads, pages: EntryPages) -> asyncio.Task[Page]:
    """A task that was cancelled while a thread reads its page; the thread waits for `may_read`."""
    reader.may_read.clear()
    task = asyncio.create_task(pages.next())
    while not pool.running:
        await asyncio.sleep(0)
    task.cancel()
    return task


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_pages_come_in_order_and_continue_behind_what_was_passed() -> None:
    async def test() -> None:
        reader = Reader(3)
        pages = pages_of(reader, Threads())
        assert [offsets(await pages.next()) for _ in range(3)] == [[0], [1], [2]]
        assert await pages.next() == ([], 3)
        reader.end = 7
        assert offsets(await pages.next(5)) == [5]
        assert offsets(await pages.next()) == [6]
        await pages.close()
        assert reader.closed

    run(test)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_read_that_failed_is_repeated(failing: int) -> None:
    async def test() -> None:
        pages = pages_of(Reader(3, failing), Threads())
        received: list[int] = []
        failures = 0
        while len(received) < 3:
            try:
                received += offsets(await pages.next())
            except Unavailable:
                failures += 1
        assert (received, failures) == ([0, 1, 2], 1)
        await pages.close()

    run(test)


def test_a_page_whose_caller_gave_up_is_given_next() -> None:
    async def test() -> None:
        reader, pool = Reader(3), Threads()
        pages = pages_of(reader, pool)
        pool.gives_up = asyncio.Event()
        pool.gives_up.set()
        with pytest.raises(Unavailable):
            await pages.next()
        pool.gives_up = None
        assert [offsets(await pages.next()) for _ in range(3)] == [[0], [1], [2]]
        await pages.close()

    run(test)


def test_a_page_of_a_cancelled_task_is_given_next() -> None:
    async def test() -> None:
        reader, pool = Reader(3), Threads()
        pages = pages_of(reader, pool)
        task = await cancelled_read(reader, pool, pages)
        with pytest.raises(asyncio.CancelledError):
            await task
        reader.may_read.set()
        await asyncio.gather(*pool.running)
        assert offsets(await pages.next()) == [0]
        await pages.close()

    run(test)


def test_a_reader_that_is_read_is_closed_afterwards() -> None:
    async def test() -> None:
        reader, pool = Reader(3), Threads()
        pages = pages_of(reader, pool)
        await cancelled_read(reader, pool, pages)
        await pages.close()
        assert not reader.closed
        reader.may_read.set()
        await asyncio.gather(*pool.running)
        assert reader.closed

    run(test)


def test_pages_that_close_while_they_return_close_their_reader() -> None:
    async def test() -> None:
        reader = Reader(2)
        returns, may_return = threading.Event(), threading.Event()

        def rewind_to(_: int) -> None:
            returns.set()
            may_return.wait(30)

        vars(reader)["rewind_to"] = rewind_to
        pages = pages_of(reader, Threads())
        await pages.next()
        pages.rewind_to(0)
        release = asyncio.create_task(pages.release_memory())
        await asyncio.to_thread(returns.wait, 30)
        await pages.close()
        assert reader.closed == 0
        may_return.set()
        await release
        assert reader.closed == 1

    run(test)
