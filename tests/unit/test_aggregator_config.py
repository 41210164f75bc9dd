"""What the aggregator can be told of its etcds."""

from __future__ import annotations

import pytest

from services.aggregator.config import AggregatorConfig
from services.common.config import ConfigError, gather


def told(*argv: str) -> AggregatorConfig:
    config, _ = gather(AggregatorConfig, "aggregator", argv, {})
    return config


def test_resources_may_lie_on_other_etcds() -> None:
    config = told("--etcd-overrides=pods=https://a:2379;https://b:2379,jobs.batch=https://c:2379")
    assert config.overrides() == {
        "pods": ["https://a:2379", "https://b:2379"], "jobs.batch": ["https://c:2379"]
    }  # fmt: skip
    assert told().overrides() == {}


@pytest.mark.parametrize("text", ["pods", "pods=", "=https://a:1", "pods=https://a:1,pods=https://b:1"])
def test_a_wrong_override_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"etcdOverrides: .*(allowed: resource.group=endpoint|named twice)"):
        told(f"--etcd-overrides={text}")


def test_who_we_are_to_etcd() -> None:
    config = told("--etcd.login.user=reclock", "--etcd.login.passwordFile=/run/p", "--etcd.tls.ca=/ca.pem")
    assert config.etcd.login.user == "reclock" and config.etcd.tls and not config.etcd.tls.cert
    with pytest.raises(ConfigError, match="user and passwordFile go together"):
        told("--etcd.login.user=reclock")
    with pytest.raises(ConfigError, match="cert and key go together"):
        told("--etcd.tls.cert=/c.pem")
