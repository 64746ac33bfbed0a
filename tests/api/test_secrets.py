"""References to secrets in jobs: checked for the tenant at submit, and stored as names."""

from mainspring.core.model.access.access import Role
from tests.api.conftest import Service

CALL = {"task": "http", "payload": {"url": "https://hooks.example", "headers": {"X-Key": "${secret:API_KEY}"}}}


async def test_a_job_with_a_secret_that_its_tenant_may_not_use_is_rejected(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.OPERATOR, "acme")) as acme:
        refused = await acme.post("/v1/jobs", json=CALL)
        assert refused.status_code == 400, refused.text
        problem = refused.json()
        assert problem["field"] == "payload"
        assert "tenant 'acme' may not use the secret API_KEY" in problem["detail"]
        batch = await acme.post("/v1/jobs/batch", json={"jobs": [CALL, {"task": "other"}]})
        assert [item.get("problem", {}).get("field") for item in batch.json()["items"]] == ["payload", None]
    async with guarded.client(await guarded.key(Role.OPERATOR, "default")) as usual:
        made = await usual.post("/v1/jobs", json=CALL)
        assert made.status_code == 201, made.text
        kept = (await usual.get(f"/v1/jobs/{made.json()['jobId']}")).json()
        assert kept["payload"] == CALL["payload"], "the reference is stored, not the value"


async def test_a_malformed_secret_reference_is_rejected(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.OPERATOR, "default")) as client:
        for text in ("${secret:api-key}", "${secret:API_KEY"):
            job = {"task": "http", "payload": {"url": "https://hooks.example", "headers": {"X": text}}}
            refused = await client.post("/v1/jobs", json=job)
            assert (refused.status_code, refused.json()["field"]) == (400, "payload.headers.X")
