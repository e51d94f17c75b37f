"""A GGUF file into a Hugging Face folder of fp32 safetensors: `python -P -m core.model.convert_gguf FILE OUT`.

Called by the demo (app/services/demo.py), which takes real weights from a Python package. The values are those of the
quantised file, dequantised; nothing is rounded again.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def convert(gguf_file: Path, out: Path) -> None:
    """Write config, weights and tokenizer to ``out``; a half-written folder never has that name."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        folder, name = str(gguf_file.parent), gguf_file.name
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
        # transformers 5.17 marks a model read from GGUF as quantised and refuses to save it, although its weights are
        # plain by then. A fresh model of the same class takes the weights over. Delete when save_pretrained accepts it.
        config = loaded.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        model = type(loaded)(config)
        model.load_state_dict(loaded.state_dict())
        model.tie_weights()
        # transformers 5.17 reads the ids of the special tokens into the config, and gives the tokenizer others of its
        # own: SmolLM2 would end in <|im_start|>. Delete when AutoTokenizer takes them from the file.
        for role in ("bos_token", "eos_token", "pad_token"):
            token_id = getattr(config, f"{role}_id", None)
            if token_id is not None:
                setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token_id))
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
