"""The training loop: optimizer steps, evaluations, checkpoints, events. Built and run by core/train/worker.py.

At the end of every step, in this order: metric row, evaluation, checkpoint, stop. A checkpoint therefore knows of
everything that was reported up to its step, and a run resumed from it repeats nothing and leaves nothing out.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from core.data.batches import BatchPlan
from core.data.row import Row
from core.optimizations.evidence import Evidence, NotActive
from core.parallel.layout import shard_row
from core.run.channel import RunChannel
from core.train.build import verify_setup
from core.train.evaluate import evaluate
from core.train.exchange import exchange
from core.train.forward import forward_loss
from core.train.layer_update import LayerUpdate
from core.train.loss_scale import LossScale
from core.train.memory import MemoryMeter
from core.train.optimizer import clip_gradients, gradient_norm, reduce_gradients, set_learning_rate
from core.train.progress import Best, Progress, Sums
from core.train.report import Reports
from core.train.saver import Saver
from core.train.schedule import learning_rate_factor, warmup_length
from core.train.setup import TrainingSetup
from core.train.windows import Window, count_steps, next_window
from planner.optimization import Registry

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 1.0  # a `progress` event at most this often between logged rows


class NonFinite(RuntimeError):
    """Loss or gradient became NaN or infinite: the run ends, the last checkpoint is intact."""

    failure_kind = "nonfinite"

    def __init__(self, step: int, ranks: list[int], what: str, *, is_taken: bool = False) -> None:
        self.step = step
        taken = "Layers were updated with it, which no checkpoint has" if is_taken else "The step was not taken"
        super().__init__(
            f"The {what} of step {step} is not finite on rank {', '.join(map(str, ranks))}. {taken}; "
            "resume continues from the last checkpoint. Lower learning_rate, or look at the data of this step."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    sums: Sums
    grad_norm: float | None  # None: an overflow in float16, the update was skipped
    learning_rate: float
    stop: bool  # rank 0 was asked to stop


class Trainer:
    """One per process. Every public method is collective over all ranks."""

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        batches: BatchPlan,
        eval_batches: BatchPlan | None,
        registry: Registry,
        saver: Saver,
        optimizer: torch.optim.Optimizer,
        channel: RunChannel,
        meter: MemoryMeter,
        open_reports: Callable[[int], Reports],  # first step -> where rank 0 reports besides the channel
        clock: Callable[[], float] = time.time,
    ) -> None:
        config = setup.config
        self.setup = setup
        self.config = config
        self.batches = batches
        self.eval_batches = eval_batches
        self.registry = registry
        self.saver = saver
        self.optimizer = optimizer
        self.channel = channel
        self.meter = meter
        self.progress = Progress(loss_scale=LossScale() if config.dtype == "float16" else None)
        self.row_tokens = 0  # of the micro-batch at work, for the message of a failure
        self.parameters = list(setup.trained.values())
        self.total_steps = count_steps(
            batches.num_micro_batches,
            accumulation=config.gradient_accumulation_steps,
            num_train_epochs=config.num_train_epochs,
            max_steps=config.max_steps,
        )
        self.warmup_steps = warmup_length(
            total_steps=self.total_steps, warmup_ratio=config.warmup_ratio, warmup_steps=config.warmup_steps
        )
        self.layer_update = (
            LayerUpdate(setup.causal_lm, optimizer, world=setup.mesh.world) if config.update == "layer" else None
        )
        self._open_reports = open_reports
        self._clock = clock
        self._is_main = setup.mesh.rank == 0
        self._last_progress_event = 0.0

    def resume_from(self, directory: Path) -> None:
        """Continue after a checkpoint: weights, optimizer, generators, next sample, sums since the last logged row."""
        self.progress, reasons = self.saver.restore(directory)
        self._event("resumed", step=self.progress.step, exact=not reasons, reason="; ".join(reasons))

    def run(self) -> Literal["done", "stopped"]:
        """Train to the end or until rank 0 is asked to stop. Either way the last step is in a checkpoint.

        Raises:
            NonFinite: a loss or gradient is not a number; on all ranks alike.
            NotActive: an optimization could not be proven active after the first step.
            EnvironmentProblem: the last checkpoint could not be written.
        """
        self._reports = self._open_reports(self.progress.step) if self._is_main else None
        try:
            return self._run()
        finally:
            if self._reports is not None:
                self._reports.close()

    def _run(self) -> Literal["done", "stopped"]:
        self._tell_memory()
        if self.progress.step == 0 and self.eval_batches is not None:
            self._evaluate()
        stop = self._agree_to_stop()
        self._event("running", total_steps=self.total_steps, world=self.setup.mesh.world)
        is_verified = False
        while self.progress.step < self.total_steps and not stop:
            window = next_window(
                self.progress.position, self.batches.num_micro_batches, self.config.gradient_accumulation_steps
            )
            result = self._take_step(window)
            self._advance(window, result)
            if not is_verified:
                for evidence in (*verify_setup(self.setup, self.registry), *self._own_evidence()):
                    self._event("evidence", **asdict(evidence))
                is_verified = True
            self._log_row(result)
            is_best = self._is_due(self.config.eval_steps) and self._evaluate()
            if self._is_due(self.config.save_steps) or (is_best and self.config.keep_best):
                self._save(is_last=False)
            stop = result.stop
        return self._finish()

    def _finish(self) -> Literal["done", "stopped"]:
        is_done = self.progress.step >= self.total_steps
        if is_done and self.eval_batches is not None and self.progress.evaluated_step != self.progress.step:
            self._evaluate()
        if self.progress.step != self.progress.saved_step and self.progress.step > 0:
            self._save(is_last=True)
        self._event("progress", step=self.progress.step)
        return "done" if is_done else "stopped"

    # --- one step ---

    def _take_step(self, window: Window) -> StepResult:
        """Forward and backward of the window's micro-batches, then the update, if every number is finite."""
        started = time.perf_counter()
        setup, step, loss_scale = self.setup, self.progress.step, self.progress.loss_scale
        scale = 1.0 if loss_scale is None else loss_scale.value
        rows = [self.batches.row(window.epoch, index) for index in window.micro_batches]
        num_targets, num_tokens = self._count(rows)
        learning_rate = self._learning_rate(step)
        set_learning_rate(self.optimizer, learning_rate)
        loss_sum = self._accumulate(rows, num_targets / scale)
        with self.meter.during("step"):
            own_norm, norm = self._norms(scale)
            wants_stop = self.channel.stop_requested is not None
            ranks = exchange([loss_sum.item(), own_norm.item(), wants_stop], setup.mesh, setup.device)
            is_finite = self._require_finite(step + 1, ranks, norm.item())
            if is_finite and self.layer_update is None:
                clip_gradients(self.parameters, norm, self.config.max_grad_norm, divide_by=scale)
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        sums = Sums(
            loss=sum(rank[0] for rank in ranks),
            num_targets=num_targets,
            tokens=num_tokens,
            seconds=time.perf_counter() - started,
        )
        grad_norm = norm.item() if is_finite else None
        return StepResult(sums=sums, grad_norm=grad_norm, learning_rate=learning_rate, stop=bool(ranks[0][2]))

    def _norms(self, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Of this rank's own gradients, and of their sums over the ranks without the loss scale; sums them."""
        if self.layer_update is not None:
            return self.layer_update.finish()
        if self.setup.sharded is not None:  # summed within the backward: no rank has gradients of its own
            self.setup.sharded.take_gradients()
            norm = gradient_norm(self.parameters, over_ranks=True) / scale
            return torch.zeros_like(norm), norm
        own_norm = None if self.setup.mesh.world == 1 else reduce_gradients(self.parameters)
        norm = gradient_norm(self.parameters) / scale
        return norm if own_norm is None else own_norm, norm

    def _own_evidence(self) -> list[Evidence]:
        """Of what the trainer itself does."""
        if self.layer_update is None:
            return []
        if not (count := self.layer_update.num_parts_in_backward):
            raise NotActive("update: layer: nothing was updated within a backward")
        return [Evidence(optimization="update", claim=f"{count} parts of the model were updated within a backward")]

    def _count(self, rows: list[Row]) -> tuple[int, int]:
        """Targets and real tokens of the window over all ranks; at least one target, since it divides."""
        # Sequence ranks hold parts of the same rows: one of them speaks for all.
        speaks = self.setup.mesh.rank % self.setup.mesh.degrees.sequence == 0
        own = [sum(row.num_targets for row in rows), sum(row.cu_seqlens[-1] for row in rows if row.sample_ids)]
        ranks = exchange(own if speaks else [0, 0], self.setup.mesh, self.setup.device)
        return max(1, int(sum(rank[0] for rank in ranks))), int(sum(rank[1] for rank in ranks))

    def _accumulate(self, rows: list[Row], divide_by: float) -> torch.Tensor:
        """Forward and backward of each micro-batch; the summed loss of this rank, a float64 scalar."""
        setup = self.setup
        loss_sum = torch.zeros((), dtype=torch.float64, device=setup.device)
        for row in rows:
            self.row_tokens = row.cu_seqlens[-1]
            with self.meter.during("forward"):
                loss = forward_loss(setup, shard_row(row, setup.mesh, setup.device))
                if self.layer_update is not None:  # the last moment at which a bad loss has changed nothing
                    ranks = exchange([loss.item()], setup.mesh, setup.device)
                    self._require_finite_loss(self.progress.step + 1, [rank[0] for rank in ranks])
            with self.meter.during("backward"):
                (loss / divide_by).backward()
            loss_sum += loss.detach()
            del loss  # its graph keeps what was recomputed of the first layer, through the next forward
        return loss_sum

    def _learning_rate(self, step: int) -> float:
        return self.config.learning_rate * learning_rate_factor(
            self.config.lr_scheduler_type, step, total_steps=self.total_steps, warmup_steps=self.warmup_steps
        )

    def _require_finite(self, step: int, ranks: list[list[float]], norm: float) -> bool:
        """False: an overflow that loss scaling mends. Raises: NonFinite for everything else."""
        scale = self.progress.loss_scale
        self._require_finite_loss(step, [loss for loss, _, _ in ranks])
        if math.isfinite(norm):
            return True
        if scale is None or scale.is_exhausted:
            guilty = [rank for rank, (_, own_norm, _) in enumerate(ranks) if not math.isfinite(own_norm)]
            is_taken = self.layer_update is not None
            raise NonFinite(step, guilty or list(range(len(ranks))), "gradient", is_taken=is_taken)
        self._event("skipped", step=step, loss_scale=scale.value)
        return False

    def _require_finite_loss(self, step: int, losses: list[float]) -> None:
        guilty = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
        if guilty:
            raise NonFinite(step, guilty, "loss")

    def _advance(self, window: Window, result: StepResult) -> None:
        before = self.progress
        self.progress = replace(
            before,
            step=before.step + 1,
            position=window.after,
            epochs_done=window.epochs_done,
            tokens_seen=before.tokens_seen + result.sums.tokens,
            unlogged=before.unlogged.plus(result.sums),
            loss_scale=_next_scale(before.loss_scale, result),
        )

    # --- what is told ---

    def _event(self, type: str, **data: Any) -> None:
        if self._is_main:
            self.channel.event(type, **data)

    def _log_row(self, result: StepResult) -> None:
        step, sums = self.progress.step, self.progress.unlogged
        if not self._is_due(self.config.logging_steps) and step != self.total_steps:
            if time.monotonic() - self._last_progress_event >= _PROGRESS_SECONDS:
                self._tell_progress()
            return
        self.progress = replace(self.progress, unlogged=Sums())
        row = {
            "step": step,
            "time": self._clock(),
            "loss": sums.loss / sums.num_targets,
            "learning_rate": result.learning_rate,
            "grad_norm": result.grad_norm,
            "num_targets": sums.num_targets,
            "tokens": sums.tokens,
            "tokens_per_second": sums.tokens / sums.seconds,
            "seconds": sums.seconds,
            "epoch": self.progress.epochs_done,
        }
        self._metric(row)
        self._tell_memory()
        self._tell_progress()
        if self._is_main:
            log.info(
                "step %d/%d  loss %.4f  lr %.3g  grad norm %.3g  %.0f tokens/s",
                step, self.total_steps, row["loss"], row["learning_rate"],
                result.grad_norm or math.nan, row["tokens_per_second"],
            )  # fmt: skip

    def _metric(self, row: dict[str, Any]) -> None:
        if self._reports is not None:
            self.channel.metric(row)
            self._reports.log(row)

    def _tell_memory(self) -> None:
        for row in self.meter.rows(self.progress.step):
            self.channel.memory(row)

    def _tell_progress(self) -> None:
        self._last_progress_event = time.monotonic()
        self._event("progress", step=self.progress.step)

    # --- evaluation, checkpoints, stop ---

    def _is_due(self, period: int) -> bool:
        return period > 0 and self.progress.step % period == 0

    def _evaluate(self) -> bool:
        """Whether this is the lowest loss so far; the loss before the first step does not count."""
        if self.eval_batches is None:
            return False
        self._event("phase", name="evaluate")
        with self.meter.during("evaluation"):
            result = evaluate(self.setup, self.eval_batches)
        step, best = self.progress.step, self.progress.best
        is_best = step > 0 and (best is None or result.loss < best.eval_loss)
        self.progress = replace(
            self.progress, evaluated_step=step, best=Best(step=step, eval_loss=result.loss) if is_best else best
        )
        self._event("evaluation", step=step, loss=result.loss, num_targets=result.num_targets)
        by_position = [asdict(bucket) for bucket in result.by_position]
        self._metric(
            {"step": step, "time": self._clock(), "eval_loss": result.loss, "eval_loss_by_position": by_position}
        )
        self._tell_memory()
        self._event("phase", name="train")
        if self._is_main:
            log.info("step %d  held-out loss %.4f over %d targets", step, result.loss, result.num_targets)
        return is_best

    def _save(self, *, is_last: bool) -> None:
        """A periodic save that fails is told and tried again at its next turn; only the last one ends the run."""
        self._event("phase", name="save")
        saved = replace(self.progress, saved_step=self.progress.step)
        if self._is_main:
            self.channel.sync()  # a kill right after the save must find every row up to this step in metrics.jsonl
        with self.meter.during("save"):
            problem = self.saver.save(saved)
        if problem is None:
            self.progress = saved
            self._event("checkpoint", step=saved.step, path=str(self.saver.path_of(saved.step)))
        elif is_last:
            raise problem
        else:
            self._event("warning", message=str(problem))
        self._event("phase", name="train")

    def _agree_to_stop(self) -> bool:
        wants_stop = self.channel.stop_requested is not None
        return bool(exchange([wants_stop], self.setup.mesh, self.setup.device)[0][0])


def _next_scale(scale: LossScale | None, result: StepResult) -> LossScale | None:
    if scale is None:
        return None
    return scale.after_overflow() if result.grad_norm is None else scale.after_good_step()
