from __future__ import annotations

from antiphon_gateway.media.sent_recordings import MOST, RecordingName, SentRecordings


def name(number: int) -> RecordingName:
    return RecordingName(f"items.{number}", number, 0)


def test_a_recording_that_is_in_use_is_not_forgotten_for_new_ones() -> None:
    sent = SentRecordings()
    for number in range(MOST):
        sent.note(name(number), number.to_bytes(32, "big"), number)
    used = sent.find(name(0))
    sent.note(name(MOST), MOST.to_bytes(32, "big"), MOST)
    assert used is not None
    assert sent.length(used) == 0
    assert sent.find(name(1)) is None
    assert sent.find(name(0)) is not None
