"""The rows that the thinker hands to the talker, through its own endpoint and from Hugging Face."""

from __future__ import annotations

import grpc
import numpy as np
import numpy.typing as npt
import torch

from antiphon.pipelines.qwen3_omni import SpecialIds, talker_row_positions
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2
from antiphon.values.chunk import Chunk, Tensors, concatenate
from antiphon.values.conversation import Conversation, to_tensors
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.reference import Case
from tests.equality.truth import Truth

# Of the largest value: Hugging Face's own float32 is off by as much from what float64 gives.
TOLERANCE = 1e-5


async def hear_prompt(address: str, session_id: str, conversation: Conversation) -> Tensors:
    """Everything that leaves on `prompt`: ids, and hidden rows with their positions."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = stage_stub(channel).RunSession()
        reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
        routes = [session_pb2.Route(edge="prompt", destinations=[reply])]
        opening = session_pb2.SessionOpen(session_id=session_id, routes=routes)
        await call.write(session_pb2.SessionRequest(open=opening))
        turn = session_pb2.SegmentOpen(sampling={"thinker": session_pb2.Sampling(max_tokens=2)})
        await call.write(session_pb2.SessionRequest(segment_open=turn))
        chunk = Chunk(session_id, "input", tensors=to_tensors(conversation))
        await call.write(session_pb2.SessionRequest(chunk=chunk_to_proto(chunk)))
        finish = session_pb2.InputFinished(segment=0)
        await call.write(session_pb2.SessionRequest(input_finished=finish))
        heard: list[Chunk] = []
        while not (heard and heard[-1].segment_finished):
            response = await call.read()
            assert isinstance(response, session_pb2.SessionResponse), "the stream has ended"
            assert not response.HasField("error"), response.error
            if response.HasField("chunk"):
                heard.append(chunk_from_proto(response.chunk))
        call.cancel()
        return concatenate([each.tensors for each in heard])


@torch.no_grad()
def _expected_rows(
    truth: Truth, case: Case
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Positions that the talker reads, and Hugging Face's hidden rows there."""
    model = truth.reference.model
    inputs = truth.reference.inputs(case.conversation, case.images, case.videos)
    special = SpecialIds.from_config(model.config.to_dict())
    ids = inputs["input_ids"][0].numpy().astype(np.int32)
    positions = talker_row_positions(ids, special)
    hidden = model.thinker(**inputs, output_hidden_states=True).hidden_states
    rows: npt.NDArray[np.float32] = hidden[model.config.talker_config.accept_hidden_layer][0]
    return positions, rows.numpy()[positions]


def check_rows(tensors: Tensors, truth: Truth, case: Case) -> None:
    """What was heard on `prompt` has Hugging Face's rows, where the talker reads them."""
    positions, rows = _expected_rows(truth, case)
    assert tensors["row_positions"].tolist() == positions.tolist()
    scale = np.abs(rows).max()
    np.testing.assert_allclose(tensors["rows"] / scale, rows / scale, rtol=0, atol=TOLERANCE)
