"""The table of the contract says the truth: every effect is in it, and its answers are events."""

from __future__ import annotations

from typing import get_args

from carpool.core.cluster import effects as cluster_effects
from carpool.core.cluster import events as cluster_events
from carpool.core.kernel import contract
from carpool.core.node import effects as node_effects
from carpool.core.node import events as node_events


def names(union: object) -> set[str]:
    return {kind.__name__ for kind in get_args(union)}


def test_every_effect_of_both_schedulers_is_in_the_table() -> None:
    assert set(contract.NODE_ANSWERS) == names(node_effects.Effect)
    assert set(contract.CLUSTER_ANSWERS) == names(cluster_effects.Effect)


def test_every_answer_is_an_event_of_the_same_scheduler() -> None:
    assert {each for answers in contract.NODE_ANSWERS.values() for each in answers} <= names(node_events.Event)
    assert {each for answers in contract.CLUSTER_ANSWERS.values() for each in answers} <= names(cluster_events.Event)


def test_what_lies_between_leads_from_effects_of_the_one_to_events_of_the_other() -> None:
    assert set(contract.CLUSTER_TELLS_NODE) <= names(cluster_effects.Effect)
    assert set(contract.CLUSTER_TELLS_NODE.values()) <= names(node_events.Event)
    assert set(contract.NODE_TELLS_CLUSTER) <= names(node_effects.Effect)
    assert set(contract.NODE_TELLS_CLUSTER.values()) <= names(cluster_events.Event)
    assert set(contract.ANSWER_OF_NODE) <= names(node_events.Event)
    assert set(contract.ANSWER_OF_NODE.values()) <= names(cluster_events.Event)


def test_orders_about_cards_all_reach_the_node() -> None:
    words_only = {"RefuseJob", "ExplainWait", "RejectEvent"}
    assert set(contract.CLUSTER_TELLS_NODE) == names(cluster_effects.Effect) - words_only
