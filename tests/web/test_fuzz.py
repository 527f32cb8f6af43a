"""The API, fuzzed from its own description: whatever comes, no answer is a server's error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

EXAMPLES = 15


@pytest.mark.slow
def test_no_request_is_a_servers_error(own_site: Callable) -> None:
    # Here: collecting the tests need not wait for it.
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, given, settings

    site = own_site(workers=2)
    schema = schemathesis.openapi.from_dict(site.client.get("/openapi.json").json())
    schema.config.update(base_url=site.url)
    answers: Counter[tuple[str, int]] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        def check(case) -> None:
            answer = case.call(timeout=120)
            answers[operation.label, answer.status_code] += 1  # noqa: B023 called at once
            assert answer.status_code < 500, answer.text
            if answer.status_code >= 400:
                assert isinstance(answer.json()["detail"], str)

        check()
    assert {label for label, _ in answers} == {
        f"{method.upper()} {path}"
        for path, methods in schema.raw_schema["paths"].items()
        for method in methods
    }
    assert {200, 202, 404, 422} <= {status for _, status in answers}
