from __future__ import annotations

import re

import pytest

from dshd.metrics import FAMILIES, Metrics

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? \S+')


def test_an_untouched_registry_lists_every_family_and_ends_with_eof() -> None:
    lines = Metrics().render().splitlines()  # our own text: it holds no other line ends
    assert lines[-1] == "# EOF"
    assert sum(line.startswith("# TYPE ") for line in lines) == len(FAMILIES)


def test_a_counter_is_printed_with_its_suffix_and_labels_escaped() -> None:
    metrics = Metrics()
    metrics.inc("dshd_checkpoint_failures", checkpoint='a"\\\n', kind="NO_SPACE")
    metrics.inc("dshd_checkpoint_failures", 2, checkpoint='a"\\\n', kind="NO_SPACE")
    line = 'dshd_checkpoint_failures_total{checkpoint="a\\"\\\\\\n",kind="NO_SPACE"} 3\n'
    assert line in metrics.render()
    assert metrics.value("dshd_checkpoint_failures", checkpoint='a"\\\n', kind="NO_SPACE") == 3


def test_a_gauge_is_set_and_moved() -> None:
    metrics = Metrics()
    metrics.set("dshd_connections", 4)
    metrics.inc("dshd_connections", -1)
    assert "\ndshd_connections 3\n" in metrics.render()


def test_buckets_are_cumulative_and_a_bound_counts_for_its_own_bucket() -> None:
    metrics = Metrics()
    for events in (1, 1.5, 20000, 20001):
        metrics.observe("dshd_batch_events", events)
    text = metrics.render()
    assert 'dshd_batch_events_bucket{le="1.0"} 1\n' in text
    assert 'dshd_batch_events_bucket{le="2.0"} 2\n' in text
    assert 'dshd_batch_events_bucket{le="20000.0"} 3\n' in text
    assert 'dshd_batch_events_bucket{le="+Inf"} 4\n' in text
    assert "dshd_batch_events_count 4\n" in text


def test_every_line_is_a_comment_or_a_sample() -> None:
    metrics = Metrics()
    for family in FAMILIES.values():
        labels = dict.fromkeys(family.labels, "x")
        (metrics.observe if family.kind == "histogram" else metrics.inc)(family.name, 1, **labels)
    for line in metrics.render().split("\n")[:-1]:
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line


def test_names_and_labels_that_the_table_does_not_have_are_refused() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.inc("dshd_surprises")
    with pytest.raises(ValueError, match="has the labels"):
        metrics.inc("dshd_calls", session="s-1")
    with pytest.raises(KeyError):
        metrics.inc("dshd_repairs", session="s-1")


def test_no_family_has_a_label_that_clients_choose_freely() -> None:
    allowed = {"version", "reason", "deadline", "method", "kind", "state", "checkpoint", "code"}
    assert {label for family in FAMILIES.values() for label in family.labels} <= allowed
