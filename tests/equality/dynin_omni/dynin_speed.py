"""Times the vendor's generation and antiphon's in alternation, on one thread.

Runs in the recorder's environment: see the README in this folder. Both draw by themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.options import IMAGE
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import MaskedAnswer, sequence_rows
from antiphon_services.dynin_omni.thinker.task_answers import AnswerMaker
from antiphon_services.dynin_omni.thinker.task_prompts import CHAT, DRAWN, SPOKEN, MaskedPrompt
from antiphon_services.dynin_omni.thinker.task_request import AnswerRequest
from antiphon_services.dynin_omni.thinker.task_tokens import TaskTokens
from antiphon_testkit.dynin_omni import tiny_checkpoint as tiny
from antiphon_testkit.tiny_llada import AS_RELEASED, PREFIX
from tests.equality.dynin_omni.dynin_cases import CASES, SEED
from tests.equality.dynin_omni.dynin_record import VendorScripts, prepare_vendor
from tests.equality.masked_diffusion.diffusion_record import vendor_model_of

SHAPE = dataclasses.replace(AS_RELEASED, hidden=256, layers=4, heads=8, kv_heads=8, inner=768)
ROUNDS = 3
MODES = {"drawn": CHAT, "read": SPOKEN, "drawn-image": DRAWN}
"""Cases, and how they are drawn."""


def main() -> None:
    """Print medians of the times of each case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of the vendor's repository")
    vendor: Path = parser.parse_args().vendor
    prepare_vendor(vendor)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name) / "model"
        tiny.build_tiny_dynin(folder, SHAPE, SEED)
        script = VendorScripts(vendor, folder)
        theirs = vendor_model_of(script.config, script.tensors, torch.float32)
        own = load_submodule(
            Llada,
            SimpleNamespace(**script.config),
            PREFIX,
            Weights(folder),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        rows = own.wte.num_embeddings
        tokens = TaskTokens.read(folder / "config.json", script.config, script.tokenizer, rows)
        maker = AnswerMaker(own, tokens, 2048)
        for case in [each for each in CASES if each.name in MODES]:
            asked, mode = script.asked(case), MODES[case.name]
            ids = asked.shown_ids(script.mask).tolist()
            image = mode is DRAWN
            prompt = MaskedPrompt(
                mode,
                ids[:-1] if image else ids,
                [tokens.t2i, tokens.text_start, tokens.text_end, tokens.soi] if image else ids,
                (tokens.eoi,) if image else (),
                case.count if image else 0,
            )
            request = AnswerRequest(
                IMAGE if image else "", False, "", case.steps, case.block, case.guidance
            )
            sampling = SamplingRequest(temperature=case.temperature, max_tokens=case.count)

            def run_own(
                prompt: MaskedPrompt = prompt,
                request: AnswerRequest = request,
                sampling: SamplingRequest = sampling,
            ) -> None:
                base = Sampling(1.0, 0, 1.0, 1.0, seed=1, max_tokens=1)
                answer = maker.make(prompt, request, base.with_request(sampling), sampling)
                finish(own, answer)

            runs = {
                "vendor": lambda case=case, asked=asked: script.generate(theirs, case, asked),
                "antiphon": run_own,
            }
            report(f"{case.name}: {case.count} positions, {case.steps} steps", runs)


def finish(model: Llada, answer: MaskedAnswer) -> None:
    """Take all steps; an answer that ends early takes fewer."""
    while not answer.done:
        ((*rows,),) = sequence_rows(model, [answer])
        answer.advance(rows)


def report(name: str, runs: dict[str, Callable[[], object]]) -> None:
    """Run each in alternation and print medians of wall clock and CPU."""
    taken: dict[str, list[tuple[float, float]]] = {each: [] for each in runs}
    for each in runs.values():
        each()
    for _ in range(ROUNDS):
        for each, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            taken[each].append((time.perf_counter() - wall, time.process_time() - cpu))
    for each, times in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name}: {each}: {wall:.2f} s, CPU {cpu:.2f} s", flush=True)


if __name__ == "__main__":
    main()
