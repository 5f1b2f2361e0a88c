import math
import socket
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from powertrip.telemetry.metrics import Metrics, MetricsAddressError, MetricsServer
from powertrip.telemetry.settings import MetricsSettings


@pytest.fixture
def metrics(told):
    metrics = Metrics()
    for event in told:
        metrics.record(event)
    return metrics


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"powertrip_{name}", labels)


def test_metrics_of_a_run(metrics):
    assert value(metrics, "training_clock_seconds") == 6.0
    assert value(metrics, "sites") == 8
    assert value(metrics, "members") == 5
    assert value(metrics, "generation") == 3
    assert value(metrics, "rounds_total") == 6
    assert value(metrics, "decisions_total") == 3
    assert value(metrics, "target", metric="test_accuracy") == 0.95
    assert value(metrics, "accuracy", split="test") == 1 - 0.5**6
    assert value(metrics, "accuracy", split="validation") == 1 - 0.5**6
    assert value(metrics, "loss", split="train") == pytest.approx(2 / 6)
    assert value(metrics, "loss", split="test") is None
    assert value(metrics, "energy_joules_total") == 3000
    assert value(metrics, "join_bytes_total") == 3000
    assert value(metrics, "rebuild_seconds_sum") == 0.75
    assert value(metrics, "rebuild_seconds_count") == 3
    assert value(metrics, "failures_total", kind="exchange") == 1
    assert value(metrics, "warnings_total") == 1
    assert value(metrics, "checkpoint_bytes") == 8000
    assert value(metrics, "lost_events_total") == 0
    for phase, total in (("local", 3.0), ("exchange", 1.5), ("evaluation", 0.75)):
        assert value(metrics, "round_phase_seconds_sum", phase=phase) == total
        assert value(metrics, "round_phase_seconds_count", phase=phase) == 6


def test_metrics_of_a_site(metrics, story):
    first, fifth, sixth, last = (story.sites[i] for i in (0, 4, 5, 7))
    assert value(metrics, "exchange_bytes_total", site=first) == 6 * 4000
    assert value(metrics, "exchange_bytes_total", site=sixth) == 2 * 4000
    assert value(metrics, "exchange_bytes_total", site=last) == 0
    assert value(metrics, "site_member", site=fifth) == 1
    assert value(metrics, "site_member", site=sixth) == 0
    assert value(metrics, "site_power_watts", site=fifth) == 180.0
    assert value(metrics, "site_power_watts", site=sixth) == 0
    assert value(metrics, "site_available_power_watts", site=sixth) == 4000 - 5 * 250
    assert value(metrics, "site_step_seconds", site=fifth) == pytest.approx(0.0585)
    assert value(metrics, "site_throughput_samples_per_second", site=fifth) == 256 / 0.46
    assert value(metrics, "site_throughput_samples_per_second", site=last) == 640 - 7 * 40


def test_metrics_of_a_link(metrics, story):
    first, second = story.sites[:2]
    metrics.record(story.links())
    assert value(metrics, "link_rtt_seconds", src=first, dst=second) == 0.01
    name = "link_bandwidth_bytes_per_second"
    assert value(metrics, name, src=second, dst=first) == 1e6
    metrics.record(story.changed_links(1, rtt_s=None, bandwidth=None))
    assert math.isnan(value(metrics, "link_rtt_seconds", src=first, dst=second))
    assert math.isnan(value(metrics, name, src=first, dst=second))
    assert value(metrics, name, src=second, dst=first) == 1e6


def test_two_runs_in_one_process_do_not_share_metrics(metrics):
    assert value(Metrics(), "rounds_total") == 0
    assert value(metrics, "rounds_total") == 6


def test_names_follow_the_conventions(metrics):
    for family in metrics.registry.collect():
        assert family.name.startswith("powertrip_")
        assert family.documentation
        assert not family.name.endswith(("_ms", "_kw", "_mb", "_count", "_total", "_percent"))


def fetch(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def can_listen(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_server_serves_and_frees_its_port_and_thread(metrics):
    threads = set(threading.enumerate())
    server = MetricsServer(MetricsSettings(port=0), metrics.registry)
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    families = {f.name for f in text_string_to_metric_families(fetch(server.url))}
    assert {"powertrip_round_phase_seconds", "powertrip_failures", "powertrip_run_info"} <= families
    server.close()
    server.close()
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    assert set(threading.enumerate()) - threads == set()


def test_a_taken_port_is_replaced_by_a_free_one(metrics):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        server = MetricsServer(MetricsSettings(port=taken), metrics.registry)
        assert server.moved_from == taken
        assert server.port != taken
        assert "powertrip_members" in fetch(server.url)
        server.close()


def test_an_address_that_is_not_here_is_named(metrics):
    with pytest.raises(MetricsAddressError, match=r"cannot listen on 203\.0\.113\.1 port 0") as e:
        MetricsServer(MetricsSettings(address="203.0.113.1", port=0), metrics.registry)
    assert e.value.exit_code == 2
    with pytest.raises(MetricsAddressError, match=r"telemetry\.metrics\.address"):
        MetricsServer(MetricsSettings(address="no.such.host.invalid"), metrics.registry)
