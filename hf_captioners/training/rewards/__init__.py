"""Rewards of self-critical training: reward functions, their weighted sum, and references."""

from .functions import (
    SELF_RETRIEVAL,
    MetricReward,
    Reward,
    caption_reward,
    caption_texts,
    check_rewards,
    named_reward,
    reward_metrics,
    reward_names,
)

__all__ = [
    "SELF_RETRIEVAL",
    "MetricReward",
    "Reward",
    "caption_reward",
    "caption_texts",
    "check_rewards",
    "named_reward",
    "reward_metrics",
    "reward_names",
]
