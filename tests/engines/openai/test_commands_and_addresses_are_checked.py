"""Commands with placeholders; addresses and keys."""

import shlex

import pytest

from codeneedle.engines.openai.settings import (
    CommandSettings,
    checked_pair,
    checked_url,
    command_template,
    read_api_key,
)
from codeneedle.errors import BadInput

VALUES = {"k": "q8_0", "v": "q4_0", "port": 81, "context": 4096, "model": "a b.gguf"}


def made(command, *env):
    """The template of *command*."""
    return command_template(CommandSettings(command=command, env=env))


def test_placeholders_are_filled_word_by_word_and_without_a_shell():
    template = made("serve '${model}' -p ${port} -c${k} --x '{\"a\": {}}' $HOME $(ls)")

    words, env = template.fill(VALUES, {})

    assert [
        *("serve", "a b.gguf", "-p", "81", "-cq8_0"),
        *("--x", '{"a": {}}', "$HOME", "$(ls)"),
    ] == words
    assert {} == env


def test_variables_are_set_or_passed_on(monkeypatch):
    """Ollama takes its cache type from one."""
    monkeypatch.setenv("HUB", "here")
    template = made("ollama serve", "KV_TYPE=${k}", "HOST=127.0.0.1:${port}", "HUB")

    _, env = template.fill(VALUES, {"HUB": "here"})

    assert {"KV_TYPE": "q8_0", "HOST": "127.0.0.1:81", "HUB": "here"} == env


@pytest.mark.parametrize(
    ("command", "env"),
    [
        pytest.param("", (), id="empty"),
        pytest.param("serve 'x ${port} ${k}", (), id="quote"),
        pytest.param("serve ${port} ${k} ${ctx}", (), id="placeholder"),
        pytest.param("serve ${port} ${k}", ("A=${}",), id="placeholder-of-variable"),
        pytest.param("serve ${k}", (), id="no-port"),
        pytest.param("serve ${port} {k}", (), id="no-type"),
        pytest.param("serve ${port} ${k}", ("1A=2",), id="no-variable"),
        pytest.param("serve ${port} ${k}", ("HF_TOKEN=abc",), id="secret"),
        pytest.param("serve ${port} ${k}", ("NOT_SET_ANYWHERE",), id="not-set"),
    ],
)
def test_a_command_that_cannot_work_is_refused(command, env, golden):
    with pytest.raises(BadInput) as caught:
        made(command, *env)

    assert golden == str(caught.value)
    assert caught.value.hint
    assert "abc" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "words",
    [
        *("--api-key abc", "--hf_token=abc", "-hft abc", "--api-keys abc,abc"),
        *("--huggingface-token abc", "--tokens abc", "--admin.password abc"),
        *("env HF_TOKEN=abc x", "env openai_api_key=abc x", "docker run -e A_KEY=abc"),
        *("docker run --env=HF_TOKEN=abc", "docker run -eHF_TOKEN=abc"),
        "bash -c 'vllm --api-key abc'",
        "bash -c 'export HF_TOKEN=abc; vllm'",
        """bash -c 'HF_TOKEN="abc" vllm'""",
        *("-H 'Authorization: Bearer abc'", "--header Authorization:abc", "Bearer abc"),
        *("""--config '{"api_key":"abc"}'""", '--config {"api_key":"abc"}'),
        '--config \'{"a": {"apiKey": "abc"}}\'',
        *("--model-loader-extra-config key=abc", "--url https://h/?token=abc"),
        *("--proxy http://user:abc@proxy/", "--proxy http://abc@proxy/"),
    ],
)
def test_a_secret_in_a_command_is_refused_wherever_it_stands(words):
    with pytest.raises(BadInput, match="takes a secret") as caught:
        made(f"serve ${{port}} ${{k}} {words}")

    assert "abc" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        *("HF_TOKEN=abc", "HTTPS_PROXY=http://user:abc@proxy", "GH_PAT=abc"),
        *("SSHPASS=abc", "MYSQL_PWD=abc", "EXTRA=--api-key=abc", "OPTS=--token abc"),
    ],
    ids=lambda text: text.partition("=")[0],
)
def test_a_secret_in_a_variable_is_refused(text, golden):
    """It may be passed on by its name, as its value is not stored then."""
    with pytest.raises(BadInput) as caught:
        made("serve ${port} ${k}", text)

    assert golden == str(caught.value)
    assert "abc" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "words",
    [
        "--tokenizer x --max-num-batched-tokens 9 --ssl-keyfile y --max-tokens=9",
        "--eos-token x --speculative-token-map a/b --api-key-file f --enable-auth true",
        "--override-kv tokenizer.ggml.add_bos_token=bool:false --keep 4K",
        "docker run -v /data/keys:/keys -v secrets:/run myorg/auth:latest --no-auth -x",
        "bash -c 'vllm --api-key $VLLM_KEY' --hf-overrides '{\"rope\": 1}'",
        "--return-tokens-as-token-ids --long-prefill-token-threshold 9 --tokens 4K",
    ],
)
def test_what_only_sounds_like_a_secret_is_none(words):
    assert shlex.split(words) == list(made(f"s ${{port}} ${{k}} {words}").words[3:])


@pytest.mark.parametrize("health", ["health", "/health check", "http://x/health"])
def test_a_health_that_is_no_path_is_refused(health):
    """Httpx would stop with a traceback."""
    with pytest.raises(BadInput, match="is no path"):
        command_template(CommandSettings(command="s ${port} ${k}", health=health))


@pytest.mark.parametrize(
    "url",
    [
        *("http://a..b/v1", "http://[v1.a]/v1", "http://xn--/v1", "http://h/\x01"),
        f"http://{'a' * 70}/v1",
        *("", "host:8000/v1", "ftp://host/v1", "http:///v1", "http://host:x/v1"),
        *("http://me:pw@host/v1", "http://host/v1?key=pw", "http://[::1/v1"),
    ],
)
def test_an_address_without_a_server_or_with_a_secret_is_refused(url):
    """Records store the address."""
    with pytest.raises(BadInput) as caught:
        checked_url(url)

    assert "pw" not in str(caught.value)


def test_an_address_loses_its_last_slash():
    assert "https://host:8000/v1" == checked_url("https://host:8000/v1/")


def test_an_endpoint_needs_its_pair(golden):
    assert "q8_0/q4_0" == str(checked_pair("q8_0/q4_0"))
    with pytest.raises(BadInput) as caught:
        checked_pair("")
    assert golden == str(caught.value)


def test_a_key_comes_from_the_environment_alone():
    assert "" == read_api_key("", {})
    assert "sk-1" == read_api_key("KEY", {"KEY": " sk-1\n"})
    for unusable in ({}, {"KEY": ""}, {"KEY": "a\x00b"}):
        with pytest.raises(BadInput, match="--api-key-env KEY"):
            read_api_key("KEY", unusable)
