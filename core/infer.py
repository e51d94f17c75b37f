"""Answer a prompt with a model, an adapter or a trained checkpoint: `python -P -m core.infer`, from `longfit infer`.

The prompt is rendered exactly as the training data was, so that the ids are the beginning of a training row. The
answer streams to stdout, talk goes to stderr. Exit codes: 0, 2 bad input, 4 out of memory, 5 no hub in reach.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextStreamer,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from core.data.example import Conversation
from core.data.tokenizer import RowTokenizer, tokenizer_folder
from core.model.load import freeze_dynamic_rope, scale_rope
from core.trained import Source, source_of_run
from planner.errors import ConfigError, EnvironmentProblem, LongfitError
from planner.gemma3 import FULL

if TYPE_CHECKING:
    from peft import PeftModel


_HUB_SECONDS = 10.0
_WITHOUT_EXCEPTIONS: dict[str, Any] = {
    "_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False,
    "_raise_exceptions_for_gated_repo": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    max_new_tokens: int = 256
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    seed: int = 0


def load(source: Source, device: torch.device) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """Model in evaluation mode and its tokenizer. On the CPU weights are float32: 16-bit arithmetic is slow there.

    Raises: ConfigError when model or adapter cannot be loaded, EnvironmentProblem when no hub can be asked for it.
    """
    require_model(source.model)
    dtype = "float32" if device.type == "cpu" else source.dtype
    try:
        config = AutoConfig.from_pretrained(source.model)
        scale_rope(config.get_text_config(), dict(source.rope_scaling))
        model = AutoModelForCausalLM.from_pretrained(
            source.model, config=config, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
        )
        freeze_dynamic_rope(model, source.max_length or config.get_text_config().max_position_embeddings)
        if source.adapter is not None:
            from peft import PeftModel  # brings bitsandbytes along: after ``main`` has quietened it

            model = PeftModel.from_pretrained(model, str(source.adapter), autocast_adapter_dtype=False)
        tokenizer = AutoTokenizer.from_pretrained(source.model)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The model '{source.model}'{f' with the adapter {source.adapter}' if source.adapter else ''} could not be "
            "loaded.",
            why=str(error).splitlines()[0],
            fix="Give a folder with config.json, *.safetensors and tokenizer.json, or download the model again.",
        ) from error
    return model.to(device).eval(), tokenizer


def require_model(model: str) -> None:
    """Ask the hub once for a model that is not on this machine: transformers would ask five times, for half a minute.

    Raises: EnvironmentProblem when it cannot be asked, ConfigError when it has no such model for us.
    """
    is_path = model.startswith((".", "/", "~")) or Path(model).is_dir()
    if is_path or cached_file(model, "config.json", local_files_only=True, **_WITHOUT_EXCEPTIONS) is not None:
        return
    what = f"The model '{model}' is not on this machine."
    try:
        HfApi().model_info(model, timeout=_HUB_SECONDS)
    except (HfHubHTTPError, HFValidationError) as error:
        raise ConfigError(
            what, why=str(error).strip().splitlines()[0],
            fix="Give the folder of a model, or its id on the hub; a gated one needs `hf auth login`.",
        ) from error  # fmt: skip
    except (httpx.HTTPError, OSError) as error:
        raise EnvironmentProblem(
            what, why=f"The hub cannot be asked for it: {str(error).splitlines()[0].rstrip('.')}.",
            fix=f"Where there is a network: hf download {model} ; or give the folder of a model that is here.",
        ) from error  # fmt: skip
    sys.stderr.write(f"downloading {model}\n")


def prompt_ids(model: str, tokenizer: PreTrainedTokenizerBase, prompt: str, system: str | None = None) -> list[int]:
    """Ids up to where the answer begins; a model without chat template continues the bare text.

    Raises: ConfigError for a system prompt without a chat template.
    """
    if not tokenizer.chat_template:
        if system is not None:
            raise ConfigError("A system prompt needs a chat template, and this model has none.", fix="Leave it out.")
        ids: list[int] = tokenizer(prompt)["input_ids"]
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    turns = [] if system is None else [{"role": "system", "content": system}]
    turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": ""}]
    text = RowTokenizer(tokenizer_folder(model)).chat.prompt(Conversation(messages=turns))
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def generate(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    sampling: Sampling,
    *,
    write: Callable[[str], object],
) -> list[int]:
    """The new ids, the stop token included; their text goes to ``write`` as it comes.

    Raises: ConfigError when prompt and answer together exceed the model's positions.
    """
    limit = max_positions(model.config)
    if len(ids) + sampling.max_new_tokens > limit:
        raise ConfigError(
            f"The prompt has {len(ids):,} tokens; with {sampling.max_new_tokens:,} new ones that is beyond the model.",
            why=f"It has {limit:,} positions.",
            fix=f"Shorten the prompt, or ask for at most {max(0, limit - len(ids)):,} new tokens.",
        )
    torch.manual_seed(sampling.seed)
    is_sampled = sampling.temperature > 0
    stops = model.generation_config.eos_token_id
    stop_ids = {tokenizer.eos_token_id, *(stops if isinstance(stops, list) else [stops])} - {None}
    settings = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=is_sampled,
        temperature=sampling.temperature if is_sampled else None,
        top_p=sampling.top_p if is_sampled else None,
        eos_token_id=sorted(stop_ids) or None,
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )
    inputs = torch.tensor([list(ids)], device=model.device)
    with torch.no_grad():
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            generation_config=settings,
            streamer=_Writer(tokenizer, write),
        )
    new_ids: list[int] = output[0, len(ids) :].tolist()
    return new_ids


def max_positions(config: Any) -> int:
    """Positions the model can tell apart, a RoPE scaling counted in."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    by_factor = ("linear", "dynamic", "yarn")
    if FULL in rope:  # Gemma 3's own layers have; max_position_embeddings is what its scaling reaches
        rope, by_factor = rope[FULL], ("dynamic",)
    factor = rope.get("factor", 1.0) if rope.get("rope_type", "default") in by_factor else 1.0
    native = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    return max(config.max_position_embeddings, int(native * factor))


class _Writer(TextStreamer):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._write(text)


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # its advice is a hub's package
    try:
        return _run(args)
    except LongfitError as error:
        for label, words in (("error", error.what), ("  why", error.why), ("  fix", error.fix)):
            if words:
                sys.stderr.write(f"{label}: {words}\n")
        return error.exit_code
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"error: Out of memory. {str(error).splitlines()[0]}\n")
        return 4


def _run(args: argparse.Namespace) -> int:
    if args.run is not None:
        source = source_of_run(args.run, step=args.step, use_base=args.base)
    else:
        source = Source(model=args.model, adapter=args.adapter)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not prompt.strip():
        raise ConfigError("The prompt is empty.", fix="Give some text, or - to read it from standard input.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sys.stderr.write(f"loading {source.model}{f' with {source.adapter}' if source.adapter else ''} on {device.type}\n")
    model, tokenizer = load(source, device)
    ids = prompt_ids(source.model, tokenizer, prompt, args.system)
    sampling = Sampling(
        max_new_tokens=args.max_new_tokens, temperature=args.temperature, top_p=args.top_p, seed=args.seed
    )

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    started = time.perf_counter()
    new_ids = generate(model, tokenizer, ids, sampling, write=write)
    write("\n")
    rate = len(new_ids) / (time.perf_counter() - started)
    sys.stderr.write(f"{len(ids):,} prompt tokens, {len(new_ids):,} new ones, {rate:.1f} tokens/s\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -P -m core.infer", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--run", type=Path, help="run directory: its newest valid checkpoint answers")
    what.add_argument("--model", help="folder or hub id")
    parser.add_argument("--step", type=int, help="this checkpoint of the run instead of the newest")
    parser.add_argument("--base", action="store_true", help="the model of the run before its training")
    parser.add_argument("--adapter", type=Path, help="folder with adapter_config.json, for --model")
    parser.add_argument("--prompt", required=True, help="the question; - reads standard input")
    parser.add_argument("--system", help="system prompt")
    defaults = Sampling()
    parser.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens)
    parser.add_argument("--temperature", type=float, default=defaults.temperature, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=defaults.top_p)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
