// What the gateway serves, and what the page offers of it.

// What the model that comes with antiphon can answer; it answers the same questions when it hears them.
const PROMPTS = {
  "antiphon-demo": [
    "What is antiphon?",
    "What are the stages?",
    "How does it work?",
    "What is two plus three?",
    "Tell me a joke.",
    "Repeat after me: the sea is blue and warm.",
  ],
};
const READ_ALOUD = ["Hello! This is how I sound.", "The sea is blue and warm.", "你好，很高兴认识你。"];

const headers = (key) => (key ? { authorization: `Bearer ${key}` } : {});

/** The model of `GET v1/models`; null if the gateway does not list it now. */
export async function servedModel(key) {
  const answer = await fetch("v1/models", { headers: headers(key) });
  return answer.ok ? (await answer.json()).data[0] : null;
}

/** Whether a stage is not ready. The gateway cannot describe the whole model then. */
export async function isLoading() {
  return (await fetch("health")).status === 503;
}

export const promptsFor = (model) => (model.reads_aloud ? READ_ALOUD : (PROMPTS[model.id] ?? []));

/** A WAV file of a short sentence in a voice; `options` are the model's. Throws the gateway's reason. */
export async function voiceSample({ key, model, voice, options }) {
  const text = "Hello!";
  const [path, body] = model.reads_aloud
    ? ["v1/audio/speech", { input: text, voice, response_format: "wav", options }]
    : [
        "v1/chat/completions",
        {
          messages: [{ role: "user", content: text }],
          modalities: ["text", "audio"],
          audio: { voice, format: "wav" },
          max_tokens: 64,
        },
      ];
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(key) },
    body: JSON.stringify({ model: model.id, ...body }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  if (model.reads_aloud) return answer.arrayBuffer();
  const { data } = (await answer.json()).choices[0].message.audio;
  return Uint8Array.from(atob(data), (char) => char.charCodeAt(0)).buffer;
}
