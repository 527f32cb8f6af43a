from __future__ import annotations

import io

from rich.console import Console

from hardnet.cli.output import now_and_then


def lines(terminal: bool, every: float) -> list[str]:
    log = io.StringIO()
    say = now_and_then(Console(file=log, force_terminal=terminal), every)
    for step in range(3):
        say(f"step {step} of 3: loss [0.5]")
    return log.getvalue().splitlines()


def test_a_training_that_is_redirected_says_a_line_now_and_then() -> None:
    assert lines(False, 0) == [f"step {step} of 3: loss [0.5]" for step in range(3)]
    assert lines(False, 100) == []
    assert lines(True, 0) == []
