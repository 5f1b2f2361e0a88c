from __future__ import annotations

from powertrip.coordination.messages import Failure, Report
from powertrip.runtime.seal import Seal
from powertrip.telemetry import events
from tests.jobs import SECRET

ROUNDS = 4


def test_what_others_put_into_the_inbox_changes_nothing_and_is_said_once(jobs):
    plain = jobs.run("sites.count=3", f"goal.max_rounds={ROUNDS}", "goal.accuracy=null")
    store = jobs.connector("job-2")()
    pushed = 0

    def push(event, _):
        """Before each round, reports of it in the name of all sites, and one that ends the run."""
        nonlocal pushed
        if not isinstance(event, events.Decision | events.Round):
            return
        round_ = event.round + 1 if isinstance(event, events.Round) else 1
        for site in range(3):
            report = Report(
                site=site, generation=event.generation, round=round_, steps=1, samples=1, loss=1,
                loss_rms=1, local_s=0, lag_s=0, exchange_s=0, evaluation_s=0, bytes_sent=0,
                digest="forged", update_norm=1, validation=None, test=None, rebuild_s=0,
                joined_bytes=0,
            ).encode()  # fmt: skip
            failure = Failure(site=site, error="E", text="forged", exit_code=1, ends_run=True)
            for secret, run in ((b"", bytes(32)), (b"guessed", bytes(32)), (SECRET, b"r" * 32)):
                seal = Seal(secret, run=run, site=site)
                for number, content in enumerate((report, failure.encode()), 1):
                    store.queue_push("inbox", seal.close_mail(b"w" * 8, number, content))
            store.queue_push("inbox", report)
            pushed += 7

    job = jobs.run(
        "sites.count=3", f"goal.max_rounds={ROUNDS}", "goal.accuracy=null", on_event=push
    )
    assert not job.site_errors
    assert (job.summary.rounds, job.summary.outcome) == (ROUNDS, "reached")
    assert job.summary.digest == plain.summary.digest
    assert pushed > 7 * 3 * ROUNDS
    (warned,) = (event.text for event in job.of(events.Warned) if "was dropped" in event.text)
    assert "runtime.secret_file" in warned
    assert SECRET.decode() not in warned


def test_a_site_that_speaks_for_another_is_not_heard(jobs):
    store = jobs.connector("job-1")()

    def push(event, _):
        if isinstance(event, events.Round):
            failure = Failure(site=0, error="E", text="forged", exit_code=1, ends_run=True)
            seal, way = Seal(SECRET, site=1), event.round.to_bytes(8, "big")
            store.queue_push("inbox", seal.close_mail(way, 1, failure.encode()))

    job = jobs.run("sites.count=2", "goal.max_rounds=3", "goal.accuracy=null", on_event=push)
    assert (job.summary.rounds, job.summary.outcome) == (3, "reached")
    (warned,) = (event.text for event in job.of(events.Warned) if "was dropped" in event.text)
    assert "site 1 may not send this failure" in warned
