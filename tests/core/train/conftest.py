import pytest


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory):
    from tests.core.train.tiny_llama import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))
