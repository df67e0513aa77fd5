"""Train the checkpoint beside this file: a 5.5 M parameter GPT-2 on a plain-text corpus of plays.

    python data/tiny-gpt2/train.py CORPUS.txt --out DIR

The corpus is a file of speeches divided by blank lines. It is split 90/10 at a speech, and the tokenizer
sees the first part only. Training stops at the end of the schedule, or before it when the validation loss
has stopped falling; the weights with the lowest validation loss are kept. DIR receives config.json,
model.safetensors (fp16), the tokenizer, loss.csv, training.json and samples.txt.
"""

import argparse
import csv
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

END = "<|endoftext|>"
VOCAB_SIZE = 2048
POSITIONS = 1024
WARMUP_STEPS = 50
RATE_FLOOR = 0.05  # of the highest learning rate
DOCUMENT_ENDS = 0.25  # after a speech; so that END is something the model samples, at varied lengths
SAMPLE_PROMPTS = ("ROMEO:\n", "First Citizen:\n", "To be, or not to be")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument(
        "--bpe-dropout", type=float, default=0.2, help="share of merges left out, falling to 0"
    )
    parser.add_argument("--lr", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--weight-decay", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=32, help="windows of 1,024 tokens a step")
    parser.add_argument("--max-steps", type=int, default=1800, help="length of the schedule")
    parser.add_argument("--eval-every", type=int, default=25, help="steps")
    parser.add_argument("--patience", type=int, default=8, help="evaluations without a better loss")
    return parser.parse_args()


def split_speeches(corpus: Path) -> tuple[list[str], list[str]]:
    """The corpus' speeches in order, the first 90 % for training and the rest for validation."""
    speeches = [s.strip("\n") for s in corpus.read_text(encoding="utf-8").split("\n\n") if s.strip()]
    cut = int(0.9 * len(speeches))
    return speeches[:cut], speeches[cut:]


def train_tokenizer(speeches: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((s + "\n\n" for s in speeches), trainer)
    return tokenizer


def as_stream(tokenizer: Tokenizer, speeches: list[str], seed: int, bpe_dropout: float = 0.0) -> torch.Tensor:
    """All speeches as one stream of ids [T], cut into documents at random speeches."""
    tokenizer.model.dropout = bpe_dropout or None
    encodings = tokenizer.encode_batch([s + "\n\n" for s in speeches])
    tokenizer.model.dropout = None
    rng = random.Random(seed)
    end = [tokenizer.token_to_id(END)]
    ids = [encoding.ids + (end if rng.random() < DOCUMENT_ENDS else []) for encoding in encodings]
    return torch.tensor(list(itertools.chain.from_iterable(ids)))


def batches(tokenizer: Tokenizer, speeches: list[str], args) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets [batch, POSITIONS] without end: windows at random places of the training stream.

    Every epoch cuts its documents and splits its words anew; the words less and less, so that the
    later epochs come closer to the encoding that the tokenizer gives in use.
    """
    rng = torch.Generator().manual_seed(args.seed)
    tokens = len(as_stream(tokenizer, speeches, args.seed))
    epoch = max(1, tokens // (args.batch_size * POSITIONS))
    for first_step in itertools.count(step=epoch):
        left_out = args.bpe_dropout * max(0.0, 1 - first_step / args.max_steps)
        stream = as_stream(tokenizer, speeches, args.seed + first_step, left_out)
        for _ in range(epoch):
            starts = torch.randint(len(stream) - POSITIONS - 1, (args.batch_size,), generator=rng)
            windows = torch.stack([stream[s : s + POSITIONS + 1] for s in starts.tolist()]).to(args.device)
            yield windows[:, :-1], windows[:, 1:]


def loss_of(model: GPT2LMHeadModel, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def validation_loss(model: GPT2LMHeadModel, stream: torch.Tensor, device: str) -> float:
    """Mean loss in nats per token over every whole window of the validation stream."""
    model.eval()
    windows = stream[: (len(stream) - 1) // POSITIONS * POSITIONS + 1].unfold(0, POSITIONS + 1, POSITIONS)
    losses = [loss_of(model, w[:, :-1].to(device), w[:, 1:].to(device)) * len(w) for w in windows.split(8)]
    return sum(losses).item() / len(windows)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """A linear warm-up, then a cosine down to the floor."""
    if step < WARMUP_STEPS:
        return args.lr * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / (args.max_steps - WARMUP_STEPS)
    return args.lr * (RATE_FLOOR + (1 - RATE_FLOOR) * (1 + math.cos(math.pi * progress)) / 2)


def make_optimizer(model: GPT2LMHeadModel, args: argparse.Namespace) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": args.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)


def train_step(
    model: GPT2LMHeadModel, optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """One update of the model; the loss before it."""
    model.train()
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        loss = loss_of(model, inputs, targets)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train(
    model: GPT2LMHeadModel, train_batches: Iterator, val: torch.Tensor, args
) -> tuple[dict, list[dict]]:
    """The weights with the lowest validation loss, in fp16, and the loss curve."""
    optimizer = make_optimizer(model, args)
    best, best_row, curve, losses, started = {}, None, [], [], time.perf_counter()
    for step in range(args.max_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        losses.append(train_step(model, optimizer, *next(train_batches)))
        if (step + 1) % args.eval_every:
            continue
        row = {
            "step": step + 1,
            "train_loss": round(torch.stack(losses).mean().item(), 4),
            "val_loss": round(validation_loss(model, val, args.device), 4),
            "learning_rate": round(learning_rate(step, args), 7),
        }
        print(*(f"{k} {v}" for k, v in row.items()), f"{time.perf_counter() - started:.0f} s", flush=True)
        curve.append(row)
        losses.clear()
        if best_row is None or row["val_loss"] < best_row["val_loss"]:
            best_row = row
            best = {k: v.to("cpu", torch.float16, copy=True) for k, v in model.state_dict().items()}
        if row["step"] - best_row["step"] >= args.patience * args.eval_every:
            break
    return best, curve


def write_samples(directory: Path) -> None:
    """Three prompts, three seeds each, none left out, drawn from the files just written (CPU, fp32)."""
    model = GPT2LMHeadModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    with (directory / "samples.txt").open("w", encoding="utf-8") as out:
        for prompt in SAMPLE_PROMPTS:
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            for seed in range(3):
                torch.manual_seed(seed)
                tokens = model.generate(
                    ids, do_sample=True, temperature=0.8, top_k=50, max_new_tokens=120, pad_token_id=0
                )
                out.write(f"--- prompt {prompt!r}, seed {seed}\n{tokenizer.decode(tokens[0])}\n\n")


def new_model(tokenizer: Tokenizer, dropout: float) -> GPT2LMHeadModel:
    end_id = tokenizer.token_to_id(END)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=POSITIONS,
        n_embd=256,
        n_layer=6,
        n_head=4,
        activation_function="gelu_pytorch_tanh",  # GPT-2's gelu_new, in one kernel instead of eight
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    return GPT2LMHeadModel(config)


def save(model: GPT2LMHeadModel, tokenizer: Tokenizer, curve: list[dict], directory: Path) -> None:
    model.config.activation_function = "gelu_new"
    model.save_pretrained(directory)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, model_max_length=POSITIONS
    ).save_pretrained(directory)
    with (directory / "loss.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, curve[0])
        writer.writeheader()
        writer.writerows(curve)


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    train_speeches, val_speeches = split_speeches(args.corpus)
    tokenizer = train_tokenizer(train_speeches)
    val = as_stream(tokenizer, val_speeches, seed=0)
    val_chars = sum(len(s) + 2 for s in val_speeches)
    model = new_model(tokenizer, args.dropout).to(args.device)

    best, curve = train(model, batches(tokenizer, train_speeches, args), val, args)

    model.half().load_state_dict(best)
    args.out.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, curve, args.out)
    shipped = GPT2LMHeadModel.from_pretrained(args.out, dtype=torch.float32).to(args.device)
    loss = validation_loss(shipped, val, args.device)
    summary = {
        "recipe": {k: v for k, v in vars(args).items() if k not in ("corpus", "out")},
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "parameters": shipped.num_parameters(),
        "training_tokens": len(as_stream(tokenizer, train_speeches, seed=0)),
        "validation_tokens": len(val),
        "steps": curve[-1]["step"],
        "best_step": min(curve, key=lambda row: row["val_loss"])["step"],
        "validation_loss_nats_per_token": round(loss, 4),
        "validation_loss_bits_per_character": round(loss * len(val) / val_chars / math.log(2), 4),
    }
    (args.out / "training.json").write_text(json.dumps(summary, indent=2) + "\n")
    write_samples(args.out)
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
