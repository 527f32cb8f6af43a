"""The API, fuzzed from its own description: whatever comes, no answer is a server's error."""

from __future__ import annotations

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from hypothesis import HealthCheck, settings

pytestmark = pytest.mark.slow


@pytest.fixture
def api(own_site):
    site = own_site(workers=2)
    schema = schemathesis.openapi.from_dict(site.client.get("/openapi.json").json())
    schema.config.update(base_url=site.url)
    return schema


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_no_request_is_a_servers_error(case) -> None:
    answer = case.call(timeout=120)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400 and answer.status_code not in (404, 405):
        assert isinstance(answer.json()["detail"], str)
