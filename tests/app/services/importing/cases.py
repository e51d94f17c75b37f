"""Commands and configurations of our own writing in the style people paste, with what must come of them.

``values``: dotted preset keys that must stand in the preset (None: must not). ``told``: part of a flag -> the kind of
the finding that speaks of it. Facts are those of conftest.py: a machine without GPU, the catalog's models, no hub.
"""
# ruff: noqa: E501  (pasted lines are as long as they are)

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    count: int = 1  # hardware.count
    dialect: str = "swift"


M7 = "--model Qwen/Qwen2.5-7B-Instruct"
M8 = "--model Qwen/Qwen3-8B"
D = "--dataset rows.jsonl"

SWIFT = (
    Case(name="plain", text=f"swift sft {M7} {D} --max_length 4096",
         values={"model": "Qwen/Qwen2.5-7B-Instruct", "max_length": 4096, "data.train": ["rows.jsonl"], "lora.rank": 8,
                 "lora.alpha": None, "weight_decay": 0.1, "adam_beta2": 0.95, "gradient_accumulation_steps": 16,
                 "gradient_checkpointing": True, "data.over_length": "drop"}),
    Case(name="full", text=f"swift sft {M7} {D} --max_length 2048 --tuner_type full",
         values={"lora": None, "qlora": None, "learning_rate": 1e-5}, told={"--tuner_type full": "translated"}),
    Case(name="train_type", text=f"swift sft {M7} {D} --max_length 2048 --train_type lora --lora_rank 32 --lora_alpha 64",
         values={"lora.rank": 32, "lora.alpha": 64}, told={"--lora_rank 32": "translated"}),
    Case(name="sft_type of v2", text=f"swift sft --model_id_or_path Qwen/Qwen2.5-7B-Instruct --sft_type lora {D} "
         "--lora_target_modules ALL --lora_dropout_p 0.1 --max_length 2048 --batch_size 2 --dtype bf16",
         values={"lora.targets": "all-linear", "lora.dropout": 0.1, "per_device_train_batch_size": 2},
         told={"--sft_type lora": "translated", "--dtype bf16": "default"}),
    Case(name="model_type of v1", text=f"swift sft --model_type qwen2_5-7b-instruct {D} --max_length 2048",
         values={"model": "qwen2_5-7b-instruct"}, told={"--model_type": "translated"}),
    Case(name="script of v1", text=f"python llm_sft.py {M7} {D} --max_length 2048", values={"max_length": 2048}),
    Case(name="qlora invented", text=f"swift sft {M8} {D} --max_length 2048 --train_type qlora --lora_rank 16",
         values={"qlora.rank": 16, "lora": None}),
    Case(name="qlora of v4", text=f"swift sft {M8} {D} --max_length 2048 --tuner_type lora --quant_method bnb "
         "--quant_bits 4 --bnb_4bit_use_double_quant false",
         values={"qlora.double_quant": False, "lora": None}, told={"--quant_bits 4": "translated"}),
    Case(name="quantization_bit of v2", text=f"swift sft {M8} {D} --max_length 2048 --quantization_bit 4",
         values={"qlora.rank": 8}, told={"--quantization_bit 4": "translated"}),
    Case(name="8 bits", text=f"swift sft {M8} {D} --max_length 2048 --quant_method bnb --quant_bits 8",
         values={"lora.rank": 8, "qlora": None}, told={"--quant_bits 8": "impossible"}),
    Case(name="hqq", text=f"swift sft {M8} {D} --max_length 2048 --quant_method hqq --quant_bits 4",
         values={"qlora.rank": 8}, told={"--quant_method hqq": "impossible"}),
    Case(name="quantised full", text=f"swift sft {M8} {D} --max_length 2048 --tuner_type full --quant_bits 4",
         values={"qlora": None, "lora": None}, told={"--quant_bits 4": "impossible"}),
    Case(name="longlora", text=f"swift sft {M8} {D} --max_length 2048 --tuner_type longlora",
         values={"lora.rank": 8}, told={"--tuner_type longlora": "impossible"}),
    Case(name="rslora", text=f"swift sft {M8} {D} --max_length 2048 --lora_rank 64 --lora_alpha 16 --use_rslora true",
         values={"lora.rank": 64, "lora.alpha": 128}, told={"--use_rslora true": "translated"}),
    Case(name="rslora uneven", text=f"swift sft {M8} {D} --max_length 2048 --lora_rank 8 --use_rslora true",
         values={"lora.alpha": 91}, told={"--use_rslora true": "impossible"}),
    Case(name="dora", text=f"swift sft {M8} {D} --max_length 2048 --use_dora true", told={"--use_dora true": "impossible"}),
    Case(name="dora off", text=f"swift sft {M8} {D} --max_length 2048 --use_dora false",
         told={"--use_dora false": "default"}),
    Case(name="targets", text=f"swift sft {M8} {D} --max_length 2048 --target_modules q_proj k_proj v_proj",
         values={"lora.targets": "q_proj,k_proj,v_proj"}),
    Case(name="adapter dtype", text=f"swift sft {M8} {D} --max_length 2048 --lora_dtype bfloat16",
         values={"lora.adapter_dtype": "bfloat16"}),
    Case(name="two GPUs, data parallel", text=f"NPROC_PER_NODE=2 swift sft {M7} {D} --max_length 2048", count=2,
         values={"sequence_parallel": None, "ulysses": None, "gradient_accumulation_steps": 8},
         told={"NPROC_PER_NODE=2": "translated"}),
    Case(name="sequence parallel", text=f"NPROC_PER_NODE=4 swift sft {M7} {D} --max_length 2048 "
         "--sequence_parallel_size 4", count=4,
         values={"sequence_parallel": 4, "ulysses": None, "gradient_accumulation_steps": 4},
         told={"--sequence_parallel_size 4": "translated"}),
    Case(name="one GPU, degree 4", text=f"swift sft {M8} {D} --max_length 2048 --sequence_parallel_size 4",
         values={"fake_parallel": 4, "fused_loss": True, "sequence_parallel": None},
         told={"--sequence_parallel_size 4": "translated"}),
    Case(name="one GPU, degree 1", text=f"swift sft {M8} {D} --max_length 2048 --sequence_parallel_size 1",
         values={"fake_parallel": None}, told={"--sequence_parallel_size 1": "default"}),
    Case(name="groups that divide", text="swift sft --model HuggingFaceTB/SmolLM2-135M-Instruct --max_length 512 "
         f"{D} --sequence_parallel_size 2", values={"fake_parallel": 3}, told={"--sequence_parallel_size 2": "translated"}),
    Case(name="two visible GPUs", text=f"CUDA_VISIBLE_DEVICES=2,3 swift sft {M7} {D} --max_length 2048", count=2,
         told={"CUDA_VISIBLE_DEVICES=2,3": "translated"}),
    Case(name="ulysses switch alone", text=f"NPROC_PER_NODE=4 swift sft {M7} {D} --max_length 2048 --use_ulysses true",
         count=4, values={"ulysses": 4}, told={"--use_ulysses true": "translated"}),
    Case(name="ulysses beyond the heads", text=f"NPROC_PER_NODE=8 swift sft {M7} {D} --max_length 2048 "
         "--use_ulysses true --ulysses_num_chunks 8", count=8, values={"sequence_parallel": 8, "ulysses": None},
         told={"--ulysses_num_chunks 8": "impossible"}),
    Case(name="degree above the GPUs", text=f"NPROC_PER_NODE=2 swift sft {M7} {D} --max_length 2048 "
         "--sequence_parallel_size 4", count=2, values={"sequence_parallel": 2},
         told={"--sequence_parallel_size 4": "impossible"}),
    Case(name="ring", text=f"NPROC_PER_NODE=2 swift sft {M7} {D} --max_length 2048 --use_ring_attn true "
         "--sequence_parallel_size 2", count=2, values={"ring": 2, "sequence_parallel": None},
         told={"--use_ring_attn true": "translated"}),
    Case(name="hybrid", text=f"NPROC_PER_NODE=8 swift sft {M7} {D} --max_length 2048 --use_ulysses true "
         "--ulysses_num_chunks 4 --use_ring_attn true --sequence_parallel_size 8", count=8,
         values={"ulysses": 4, "ring": 2}, told={"--use_ring_attn true": "translated"}),
    Case(name="fake parallel switch", text=f"swift sft {M7} {D} --max_length 12288 --ulysses_use_fake_parallel true",
         values={"fake_parallel": 2, "fused_loss": True}, told={"--ulysses_use_fake_parallel true": "translated"}),
    Case(name="fake parallel with dropout", text=f"swift sft {M7} {D} --max_length 2048 --lora_dropout 0.1 "
         "--ulysses_use_fake_parallel true", values={"fake_parallel": 2, "lora.dropout": None}),
    Case(name="fake parallel on ranks", text=f"NPROC_PER_NODE=2 swift sft {M7} {D} --max_length 2048 "
         "--ulysses_num_chunks 2 --ulysses_use_fake_parallel true", count=2, values={"ulysses": 2, "fake_parallel": None},
         told={"--ulysses_use_fake_parallel true": "ignored"}),
    Case(name="galore with lora", text=f"swift sft {M7} {D} --max_length 2048 --use_galore true --galore_rank 64",
         values={"galore": None, "lora.rank": 8}, told={"--use_galore true": "impossible"}),
    Case(name="galore without its switch", text=f"swift sft {M7} {D} --max_length 2048 --tuner_type full --galore_rank 9",
         values={"galore": None}, told={"--galore_rank 9": "ignored"}),
    Case(name="galore off", text=f"swift sft {M7} {D} --max_length 2048 --use_galore false",
         told={"--use_galore false": "default"}),
    Case(name="packing", text=f"swift sft {M7} {D} --max_length 8192 --packing True --packing_max_seq_len 4096",
         values={"packing.length": 4096, "max_length": 8192}, told={"--packing_max_seq_len 4096": "translated"}),
    Case(name="packs longer than rows", text=f"swift sft {M7} {D} --max_length 2048 --packing true --packing_length 8192",
         values={"packing": True, "max_length": 2048}, told={"--packing_length 8192": "impossible"}),
    Case(name="shares of sets", text=f"swift sft {M7} --dataset a.jsonl b.jsonl --max_length 8192 "
         "--interleave_prob 0.7 0.3 --stopping_strategy all_exhausted",
         values={"data.weights": {"a.jsonl": 0.7, "b.jsonl": 0.3}},
         told={"--interleave_prob": "translated", "--stopping_strategy": "impossible"}),
    Case(name="a share too few", text=f"swift sft {M7} --dataset a.jsonl b.jsonl --max_length 8192 --interleave_prob 1",
         values={"data.weights": None}, told={"--interleave_prob": "unknown"}),
    Case(name="packing of one length", text=f"swift sft {M7} {D} --max_length 8192 --packing true --packing_length 8192",
         values={"packing": True}, told={"--packing_length 8192": "default"}),
    Case(name="padding free", text=f"swift sft {M7} {D} --max_length 2048 --padding_free true",
         values={"packing": None}, told={"--padding_free true": "default"}),
    Case(name="flash attention 3", text=f"swift sft {M7} {D} --max_length 2048 --attn_impl flash_attention_3",
         values={"flash_attention": None}, told={"--attn_impl flash_attention_3": "impossible"}),
    Case(name="flash attention", text=f"swift sft {M7} {D} --max_length 2048 --use_flash_attn true",
         values={"flash_attention": None}, told={"--use_flash_attn true": "default"}),
    Case(name="sdpa", text=f"swift sft {M7} {D} --max_length 2048 --attn_impl sdpa", values={"flash_attention": "sdpa"}),
    Case(name="eager", text=f"swift sft {M7} {D} --max_length 2048 --attn_impl eager",
         told={"--attn_impl eager": "impossible"}),
    Case(name="zero3", text=f"NPROC_PER_NODE=2 swift sft {M7} {D} --max_length 2048 --deepspeed zero3", count=2,
         values={"fsdp": True}, told={"--deepspeed zero3": "translated"}),
    Case(name="zero3 with weights on the host", text=f"swift sft {M7} {D} --max_length 2048 --deepspeed zero3_offload",
         values={"weight_streaming": True, "fsdp": None}, told={"--deepspeed zero3_offload": "translated"}),
    Case(name="yarn", text=f"swift sft {M7} {D} --max_length 65536 --rope_scaling yarn --max_model_len 65536",
         values={"rope_scaling": {"type": "yarn", "factor": 2.0}}, told={"--rope_scaling yarn": "translated"}),
    Case(name="rope as JSON", text=f"swift sft {M7} {D} --max_length 65536 "
         "--rope_scaling '{\"rope_type\": \"linear\", \"factor\": 4.0}'",
         values={"rope_scaling": {"type": "linear", "factor": 4.0}}),
    Case(name="dtype float16", text=f"swift sft {M7} {D} --max_length 2048 --torch_dtype float16",
         values={"dtype": "float16"}),
    Case(name="fp16 switch", text=f"swift sft {M7} {D} --max_length 2048 --fp16 true", values={"dtype": "float16"}),
    Case(name="schedule", text=f"swift sft {M7} {D} --max_length 2048 --lr_scheduler_type constant --warmup_ratio 0.1",
         values={"lr_scheduler_type": "constant", "warmup_ratio": None}),
    Case(name="schedule with floor", text=f"swift sft {M7} {D} --max_length 2048 --lr_scheduler_type cosine_with_min_lr",
         values={"lr_scheduler_type": "cosine"}, told={"--lr_scheduler_type cosine_with_min_lr": "impossible"}),
    Case(name="8-bit optimizer", text=f"swift sft {M7} {D} --max_length 2048 --optim paged_adamw_8bit",
         values={"optim": "paged_adamw_8bit"}, told={"--optim paged_adamw_8bit": "translated"}),
    Case(name="8-bit optimizer by its older name", text=f"swift sft {M7} {D} --max_length 2048 --optim adamw_bnb_8bit",
         values={"optim": "adamw_8bit"}, told={"--optim adamw_bnb_8bit": "translated"}),
    Case(name="intervals", text=f"swift sft {M7} {D} --max_length 2048 --save_steps 50 --eval_steps 25 "
         "--split_dataset_ratio 0.05 --logging_steps 1",
         values={"save_steps": 50, "eval_steps": 25, "data.eval_fraction": 0.05, "logging_steps": None}),
    Case(name="save by epoch", text=f"swift sft {M7} {D} --max_length 2048 --save_strategy epoch --save_steps 9",
         values={"save_steps": None}, told={"--save_strategy epoch": "impossible", "--save_steps 9": "ignored"}),
    Case(name="validation file", text=f"swift sft {M7} {D} --max_length 2048 --val_dataset held.jsonl",
         values={"data.eval": ["held.jsonl"]}),
    Case(name="hub id", text=f"swift sft {M7} --dataset AI-ModelScope/alpaca-gpt4-data-zh#500 --max_length 2048",
         values={"data.train": ["ms::AI-ModelScope/alpaca-gpt4-data-zh#500"]}, told={"--dataset": "impossible"}),
    Case(name="hub of Hugging Face", text=f"USE_HF=1 swift sft {M7} --dataset tatsu-lab/alpaca#10 --max_length 2048",
         values={"data.train": ["hf::tatsu-lab/alpaca#10"]}, told={"USE_HF=1": "translated"}),
    Case(name="registered set of v1", text=f"swift sft {M7} --dataset alpaca-zh --max_length 2048",
         values={"data.train": ["alpaca-zh"]}, told={"--dataset alpaca-zh": "unknown"}),
    Case(name="sampled file", text=f"swift sft {M7} {D} --train_dataset_sample 200 --max_length 2048",
         values={"data.train": ["rows.jsonl#200"]}),
    Case(name="split", text=f"swift pt {M7} {D} --max_length 2048 --truncation_strategy split",
         values={"data.over_length": "split", "data.train_on": "all"}),
    Case(name="last round", text=f"swift sft {M7} {D} --max_length 2048 --loss_scale last_round",
         values={"data.train_on": "last"}),
    Case(name="system prompt", text=f"swift sft {M7} {D} --max_length 2048 --system '你是助手，请简短回答。'",
         values={"data.system": "你是助手，请简短回答。"}),
    Case(name="system from a file", text=f"swift sft {M7} {D} --max_length 2048 --system prompt.txt",
         values={"data.system": None}, told={"--system prompt.txt": "impossible"}),
    Case(name="no max_length", text=f"swift sft {M7} {D}", values={"max_length": 32768}),
    Case(name="length beyond", text=f"swift sft {M7} {D} --max_length 40000", values={"max_length": 40000}),
    Case(name="misspelt", text=f"swift sft {M7} {D} --max_lenght 2048", told={"--max_lenght 2048": "unknown"}),
    Case(name="not a number", text=f"swift sft {M7} {D} --max_length 8k", told={"--max_length 8k": "unknown"}),
    Case(name="thousands", text=f"swift sft {M7} {D} --max_length 8,192", values={"max_length": 8192}),
    Case(name="shell variables", text=f"MODEL=Qwen/Qwen3-8B\nLEN=4096\nswift sft --model $MODEL {D} --max_length ${{LEN}}",
         values={"model": "Qwen/Qwen3-8B", "max_length": 4096}),
    Case(name="open variable", text=f"swift sft --model $MODEL {D} --max_length 2048", told={"--model $MODEL": "unknown"}),
    Case(name="given twice", text=f"swift sft {M7} {D} --max_length 1024 --max_length 2048",
         values={"max_length": 2048}, told={"--max_length 1024": "ignored"}),
    Case(name="equals", text="swift sft --model=Qwen/Qwen3-8B --dataset=rows.jsonl --max-length=2048 --learning-rate=3e-5",
         values={"model": "Qwen/Qwen3-8B", "max_length": 2048, "learning_rate": 3e-5}),
    Case(name="typographic", text="swift sft ——model Qwen/Qwen3-8B –dataset “rows.jsonl” --max_length　２０４８",
         values={"model": "Qwen/Qwen3-8B", "data.train": ["rows.jsonl"], "max_length": 2048}),
    Case(name="multi-line with comments",
         text=f"# tune\nexport NPROC_PER_NODE=2\nswift sft \\\n  {M8} \\   # the model --train_type full\n  {D} \\\n"
         "  # --lora_rank 99\n  --max_length 2048 \\\n  --packing true ✅\n", count=2,
         values={"lora.rank": 8, "packing": True, "max_length": 2048}),
    Case(name="notebook", text=f"%%bash\n!CUDA_VISIBLE_DEVICES=0 swift sft {M8} {D} --max_length 2048 > log.txt 2>&1 &",
         values={"max_length": 2048}),
    Case(name="fenced", text=f"```bash\n$ swift sft {M8} \\\n    {D} \\\n    --max_length 2048\n```",
         values={"max_length": 2048}),
    Case(name="torchrun", text=f"torchrun --nproc_per_node 2 --master_port 29501 swift/cli/sft.py {M8} {D} --max_length 2048",
         count=2, values={"max_length": 2048}, told={"--master_port 29501": "ignored"}),
    Case(name="environment", text=f"MASTER_PORT=29600 HF_ENDPOINT=https://x CELOSS_PARALLEL_SIZE=2048 swift sft {M8} {D} "
         "--max_length 2048", values={"fused_loss": True}, told={"HF_ENDPOINT": "ignored", "CELOSS": "translated"}),
    Case(name="resume", text=f"swift sft {M8} {D} --max_length 2048 --resume_from_checkpoint out/checkpoint-10",
         told={"--resume_from_checkpoint": "impossible"}),
    Case(name="no verb's program", text=f"{M8} {D} --max_length 2048 --train_type lora", values={"max_length": 2048}),
    Case(name="a YAML of swift", text="model: Qwen/Qwen3-8B\ntuner_type: lora\ndataset: rows.jsonl\nmax_length: 2048\n"
         "sequence_parallel_size: 2\nENV:\n  NPROC_PER_NODE: 2\n", count=2, values={"sequence_parallel": 2}),
)  # fmt: skip

OTHERS = (
    Case(name="llamafactory", dialect="llamafactory", text="""\
### model
model_name_or_path: Qwen/Qwen2.5-7B-Instruct
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
### dataset
dataset: a.jsonl,b.jsonl
template: qwen
cutoff_len: 4096
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
### output
output_dir: saves/qwen
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
neat_packing: true
flash_attn: fa2
enable_liger_kernel: true
val_size: 0.1
eval_strategy: steps
eval_steps: 500
""", values={"lora.rank": 16, "lora.alpha": None, "lora.targets": "all-linear", "max_length": 4096, "packing": True,
             "data.train": ["a.jsonl#1000", "b.jsonl#1000"], "data.eval_fraction": 0.1, "fused_loss": True,
             "data.over_length": None, "gradient_checkpointing": True, "dtype": None},
         told={"template: qwen": "ignored", "flash_attn: fa2": "impossible", "plot_loss": "default"}),
    Case(name="llamafactory flags", dialect="llamafactory", text="llamafactory-cli train --stage sft --do_train True "
         "--model_name_or_path Qwen/Qwen3-8B --finetuning_type full --dataset rows.jsonl --cutoff_len 1024 --pure_bf16 True",
         values={"lora": None, "max_length": 1024, "per_device_train_batch_size": 8}),
    Case(name="llamafactory qlora", dialect="llamafactory", text="model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\n"
         "quantization_bit: 4\nquantization_method: bnb\ndataset: rows.jsonl\ncutoff_len: 1024\nlora_rank: 8\nstage: sft\n",
         values={"qlora.rank": 8, "qlora.alpha": 16, "dtype": "float32"}),
    Case(name="llamafactory dpo", dialect="llamafactory", text="model_name_or_path: Qwen/Qwen3-8B\nstage: dpo\n"
         "finetuning_type: lora\ndataset: rows.jsonl\ncutoff_len: 1024\npref_beta: 0.1\n",
         told={"stage: dpo": "impossible", "pref_beta: 0.1": "impossible"}),
    Case(name="llamafactory galore", dialect="llamafactory", text="model_name_or_path: Qwen/Qwen3-8B\nstage: sft\n"
         "finetuning_type: full\nuse_galore: true\ngalore_layerwise: true\ngalore_rank: 128\ndataset: rows.jsonl\n"
         "cutoff_len: 1024\n", values={"galore.rank": 128},
         told={"use_galore: true": "translated", "galore_layerwise: true": "impossible"}),
    Case(name="axolotl", dialect="axolotl", text="""\
base_model: NousResearch/Meta-Llama-3-8B
load_in_8bit: false
load_in_4bit: true
adapter: qlora
datasets:
  - path: rows.jsonl
    ds_type: json
    type: alpaca
val_set_size: 0.05
output_dir: ./out
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
""", values={"qlora.rank": 32, "qlora.alpha": 16, "qlora.dropout": 0.05, "data.shape": "alpaca", "max_length": 4096,
             "packing": True, "per_device_train_batch_size": 2, "num_train_epochs": 4.0, "warmup_steps": 10,
             "data.eval_fraction": 0.05, "warmup_ratio": None},
         told={"optimizer: paged_adamw_32bit": "impossible", "saves_per_epoch": "impossible",
               "flash_attention: true": "default", "special_tokens": "ignored"}),
    Case(name="axolotl context parallel", dialect="axolotl", count=4, text="base_model: Qwen/Qwen3-8B\nadapter: lora\n"
         "datasets:\n  - path: org/set\n    type: chat_template\nsequence_len: 32768\ncontext_parallel_size: 4\n"
         "micro_batch_size: 1\nplugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
         "gradient_checkpointing: offload\nlearning_rate: 1e-4\n",
         values={"sequence_parallel": 4, "data.train": ["hf::org/set"], "fused_loss": True,
                 "gradient_checkpointing": True}, told={"datasets": "impossible"}),
    Case(name="axolotl full", dialect="axolotl", text="base_model: Qwen/Qwen3-8B\ndatasets: [{path: rows.jsonl}]\n"
         "sequence_len: 2048\nmicro_batch_size: 1\nbatch_size: 16\nlearning_rate: 2e-5\nsdp_attention: true\n",
         values={"lora": None, "gradient_accumulation_steps": 16, "learning_rate": 2e-5, "flash_attention": "sdpa"}),
    Case(name="axolotl command", dialect="axolotl", text="accelerate launch --num_processes 2 -m axolotl.cli.train x.yml "
         "--learning-rate 1e-5", count=2, values={"learning_rate": 1e-5}),
    Case(name="trl flags", dialect="hf", text="trl sft --model_name_or_path Qwen/Qwen3-8B --dataset_name trl-lib/Capybara "
         "--use_peft --lora_r 32 --lora_target_modules all-linear --max_length 2048 --packing --attn_implementation "
         "flash_attention_2 --learning_rate 2.0e-4 --per_device_train_batch_size 2 --output_dir out",
         values={"lora.rank": 32, "lora.targets": "all-linear", "packing": True, "data.train": ["hf::trl-lib/Capybara"],
                 "data.train_on": "all", "lr_scheduler_type": "linear"},
         told={"--dataset_name": "impossible", "--attn_implementation": "impossible"}),
    Case(name="trl yaml", dialect="hf", text="model_name_or_path: Qwen/Qwen3-8B\nuse_peft: true\nload_in_4bit: true\n"
         "lora_r: 16\ndatasets:\n  - path: json\n    data_files: rows.jsonl\nassistant_only_loss: true\nmax_length: 4096\n",
         values={"qlora.rank": 16, "data.train": ["rows.jsonl"], "data.train_on": None, "max_length": 4096}),
    Case(name="a script", dialect="hf", count=8, text="deepspeed --num_gpus 8 train.py --model_name_or_path Qwen/Qwen3-8B "
         "--train_file rows.json --model_max_length 2048 --deepspeed ds.json --bf16 True --num_train_epochs 2",
         values={"lora": None, "fsdp": True, "max_length": 2048, "num_train_epochs": 2.0},
         told={"--deepspeed ds.json": "translated"}),
    Case(name="python", dialect="hf", text='''\
from trl import SFTConfig, SFTTrainer
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", quantization_config=bnb, device_map="auto")
dataset = load_dataset("json", data_files="rows.jsonl", split="train")
peft_config = LoraConfig(r=64, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
args = SFTConfig(output_dir="out", max_length=2048, packing=True, learning_rate=2e-4, num_train_epochs=EPOCHS)
trainer = SFTTrainer(model=model, args=args, train_dataset=dataset, peft_config=peft_config)
''', values={"qlora.rank": 64, "qlora.alpha": 16, "qlora.dropout": 0.1, "model": "Qwen/Qwen3-8B", "packing": True,
             "data.train": ["rows.jsonl"], "learning_rate": 2e-4},
         told={"num_train_epochs=EPOCHS": "unknown", "device_map='auto'": "ignored"}),
    Case(name="an unsloth notebook", dialect="hf", text='''\
model, tokenizer = FastLanguageModel.from_pretrained(model_name="Qwen/Qwen3-8B", max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(
    model, r=16, target_modules=["q_proj", "v_proj"], lora_alpha=32, lora_dropout=0, bias="none",
    use_gradient_checkpointing="unsloth", random_state=3407, use_rslora=False, loftq_config=None,
)
trainer = SFTTrainer(model=model, tokenizer=tokenizer, train_dataset=dataset, args=SFTConfig(
    per_device_train_batch_size=2, warmup_steps=5, max_steps=60, optim="adamw_8bit", seed=3407, output_dir="outputs",
))
''', values={"qlora.rank": 16, "qlora.alpha": 32, "qlora.targets": "q_proj,v_proj", "checkpoint_offload": True,
             "gradient_checkpointing": True, "seed": 3407, "max_steps": 60},
         told={"use_gradient_checkpointing='unsloth'": "translated", "random_state=3407": "ignored"}),
    Case(name="axolotl's sharding by its configuration", dialect="axolotl", text="base_model: Qwen/Qwen3-8B\n"
         "sequence_len: 4096\nfsdp_config:\n  fsdp_version: 2\n", told={"fsdp_config": "impossible"}),
    Case(name="python in pieces", dialect="hf", text='... TrainingArguments(per_device_train_batch_size=4, fp16=True,\n'
         '  gradient_accumulation_steps=2, ) ... and then LoraConfig(r=8, target_modules=["q_proj", "v_proj"])',
         values={"lora.rank": 8, "lora.targets": "q_proj,v_proj", "dtype": "float16", "per_device_train_batch_size": 4}),
    Case(name="galore by transformers", dialect="hf", text="python run.py --model_name_or_path Qwen/Qwen3-8B "
         "--train_file rows.json --max_seq_length 512 --optim galore_adamw --optim_args 'rank=64, update_proj_gap=100'",
         values={"galore.rank": 64, "galore.update_proj_gap": 100}, told={"--optim galore_adamw": "translated"}),
)  # fmt: skip

CASES = (*SWIFT, *OTHERS)
