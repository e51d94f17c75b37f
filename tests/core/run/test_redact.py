from __future__ import annotations

import pytest

from core.run.redact import is_secret_name, redact_environment, redact_text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GIT_ASKPASSWD", "SSH_AUTH_SOCK"]
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "HF_HOME", "OMP_NUM_THREADS", "KEYBOARD"])
def test_names_of_no_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "secret",
    ["hf_CanaryCanary1234", "sk-canary1234canary", "ghp_canarycanary123", "AKIACANARYCANARY99", "glpat-canary12345"],
)
def test_canaries_never_survive(secret):
    assert secret not in redact_text(f"--token {secret} and '{secret}'")
    assert secret not in str(redact_environment({"HARMLESS": f"x={secret}"}))


def test_the_user_part_of_an_address_goes_and_the_rest_stays():
    assert redact_text("https://me:canary@hub.example/x?y=1") == "https://<redacted>@hub.example/x?y=1"
    assert redact_text("https://hub.example:8080/a@b") == "https://hub.example:8080/a@b"
