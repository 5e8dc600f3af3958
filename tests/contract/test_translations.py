"""`/v1/audio/translations`, asked by OpenAI's client and by bare forms."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.audio import Translation, TranslationVerbose

from antiphon.values.conversation import AudioPart, TextPart
from tests.contract.fake_stages import THINKER
from tests.contract.served_gateway import MODEL, ServedGateway
from tests.contract.test_transcriptions import SAID, SECONDS, file, heard

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    # OpenAI's package marks the method, because OpenAI's own models for it end.
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

PATH = "/v1/audio/translations"
INSTRUCTION = "Translate what the audio says into English. Answer with the translation alone."


async def post(served: ServedGateway, **fields: Any) -> Any:
    form: dict[str, Any] = {"model": MODEL, **fields}
    return await served.http.post(PATH, data=form, files={"file": file()})


async def test_translation_is_what_the_model_says_of_the_recording(served: ServedGateway) -> None:
    said = await served.openai.audio.translations.create(
        model=MODEL, file=file(), prompt="Bells: tenor, treble.", temperature=0.25
    )
    Translation.model_validate(said.model_dump(), strict=True)
    assert said.text == SAID
    (message,) = heard(served).messages
    known = f"{INSTRUCTION}\nWhat is known of it: Bells: tenor, treble."
    assert message.parts == (AudioPart(0), TextPart(known))
    segment = served.fakes[THINKER].sessions[-1].segment
    assert list(segment.outputs) == ["text"]
    assert segment.sampling[THINKER].temperature == 0.25
    assert not segment.options


async def test_translation_as_text_and_with_all_that_is_known(served: ServedGateway) -> None:
    ask = served.openai.audio.translations.create
    assert await ask(model=MODEL, file=file(), response_format="text") == SAID
    verbose = await ask(model=MODEL, file=file(), response_format="verbose_json")
    TranslationVerbose.model_validate(verbose.model_dump(), strict=True)
    assert (verbose.text, verbose.language, verbose.duration) == (SAID, "english", SECONDS)
    (segment,) = verbose.segments or ()
    assert (segment.start, segment.end, segment.text) == (0.0, SECONDS, SAID)
    answer = await post(served, response_format="verbose_json")
    assert answer.json()["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"model": ""}, "model"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"response_format": "srt", "stream": "true"}, "response_format"),
        ({"language": "de"}, "language"),
        ({"to_language": "de"}, "to_language"),
    ],
)
async def test_translation_names_the_field_that_it_refuses(
    served: ServedGateway, fields: dict[str, str], field: str
) -> None:
    answer = await post(served, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


async def test_translation_into_english_by_name_is_one(served: ServedGateway) -> None:
    answer = await post(served, to_language="en")
    assert (answer.status_code, answer.json()["text"]) == (200, SAID)


async def test_translation_comes_in_events(served: ServedGateway) -> None:
    answer = await post(served, stream="true")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '"transcript.text.done"' in answer.text
    assert SAID in answer.text


async def test_the_document_describes_translations(served: ServedGateway) -> None:
    document = (await served.http.get("/openapi.json")).json()
    assert document["paths"][PATH]["post"]["summary"].startswith("Translates")
    assert "language" not in document["components"]["schemas"]["TranslationForm"]["properties"]
