// An answer with images: a streamed chat completion, which the realtime API has no events for.

const DATA = "data: ";

/** Yields the JSON events of a response with server-sent events. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(DATA) && !block.startsWith(`${DATA}[DONE]`)) {
        yield JSON.parse(block.slice(DATA.length));
      }
    }
  }
}

/** What a model is asked for: images alone where these are a task of their own, else text with them. */
function request(model) {
  const task = model.options.find(({ name, choices }) => name === "task" && choices?.includes("image"));
  if (task) return { modalities: ["image"], options: { task: "image" } };
  return { modalities: model.outputs.filter((output) => output !== "audio") };
}

/**
 * Asks a model of `GET v1/models` for images, with text if it makes both at once. Calls `onText(text)`,
 * `onImage(url)` and `onSteps({ stage, done, due })` as they arrive. Throws an error with the reason;
 * aborting the `signal` throws an `AbortError`.
 */
export async function draw({ key, model, text, signal, onText, onImage, onSteps }) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    signal,
    headers: {
      "content-type": "application/json",
      ...(key ? { authorization: `Bearer ${key}` } : {}),
    },
    body: JSON.stringify({
      model: model.id,
      messages: [{ role: "user", content: text }],
      ...request(model),
      stream: true,
    }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const { error, choices, antiphon } of eventsOf(response)) {
    if (error) throw new Error(error.message);
    const delta = choices?.[0]?.delta ?? {};
    if (delta.content) onText(delta.content);
    for (const image of delta.images ?? []) onImage(image.image_url.url);
    if (antiphon?.progress) onSteps(antiphon.progress);
  }
}
