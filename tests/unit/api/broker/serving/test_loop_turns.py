"""Work of later turns of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from api.broker.serving.loop_turns import repeat_while


def fails(reason: str) -> bool:
    raise ValueError(reason)


def test_an_error_of_a_step_is_raised_although_the_end_fails_too() -> None:
    with pytest.raises(ValueError, match="step") as raised:
        asyncio.run(repeat_while(lambda: fails("step"), lambda: fails("end")))
    assert raised.value.__notes__ == ["the end of this work failed, too: ValueError('end')"]


def test_a_cancellation_is_raised_although_the_end_fails() -> None:
    async def main() -> None:
        task = asyncio.create_task(repeat_while(lambda: True, lambda: fails("end")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_error_of_the_end_alone_is_raised() -> None:
    with pytest.raises(ValueError, match="end"):
        asyncio.run(repeat_while(lambda: False, lambda: fails("end")))
