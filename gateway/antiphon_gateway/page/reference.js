// "Try it" on the reference page: sends a request from the page, and shows or plays the answer.

import { keepSettings, keptSettings } from "./history.js";

const SERVER = new URL("..", import.meta.url);
const MOST_CHARS = 200_000; // of an answer's text
const LONGEST_STRING = 400; // within JSON; longer ones are media
const MODEL = /\bMODEL\b/g;
const AUDIO_TYPES = { mp3: "audio/mpeg", wav: "audio/wav", flac: "audio/flac", opus: "audio/ogg", aac: "audio/aac" };

const key = document.getElementById("key");

const headersWith = (more = {}) =>
  key.value ? { authorization: `Bearer ${key.value}`, ...more } : more;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Writes the name of the served model in the place of MODEL. */
async function nameModel() {
  let name;
  try {
    const listed = await fetch(new URL("v1/models", SERVER), { headers: headersWith() });
    name = (await listed.json()).data[0].id;
  } catch {
    return; // without a key, or while the model is loading; the request's answer gives the reason
  }
  for (const field of document.querySelectorAll("form.try textarea, form.try input:not([type=file])")) {
    field.value = field.value.replace(MODEL, name);
  }
}

/** The URL, the options of `fetch`, and the body if it is JSON. */
function requestOf(form) {
  const { method, path, kind } = form.dataset;
  const fields = new FormData(form);
  const query = new URLSearchParams();
  let filled = path.slice(1);
  if (method === "get") {
    for (const [name, value] of fields) {
      if (filled.includes(`{${name}}`)) {
        filled = filled.replace(`{${name}}`, value.split("/").map(encodeURIComponent).join("/"));
      } else if (value) {
        query.set(name, value);
      }
    }
  }
  const url = new URL(filled, SERVER);
  url.search = query;
  if (method === "get") return { url, options: { headers: headersWith() } };
  if (kind !== "json") return { url, options: { method, headers: headersWith(), body: fields } };
  const body = fields.get("body");
  const headers = headersWith({ "content-type": "application/json" });
  return { url, options: { method, headers, body }, sent: JSON.parse(body) };
}

/** Shows what an answer has: text, speech and images. */
class Answer {
  #urls = [];

  constructor(place) {
    this.place = place;
    this.status = place.querySelector("[role=status]");
  }

  begin() {
    for (const url of this.#urls) URL.revokeObjectURL(url);
    this.#urls = [];
    this.place.replaceChildren(this.status);
    this.place.hidden = false;
    this.status.textContent = "Waiting …";
  }

  text(text) {
    const cut = text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}\n…` : text;
    this.place.append(element("pre", { tabIndex: 0 }, element("code", {}, cut)));
  }

  play(blob) {
    this.place.append(element("audio", { controls: true, src: this.#urlOf(blob) }));
  }

  draw(blob) {
    this.place.append(element("img", { alt: "The generated image", src: this.#urlOf(blob) }));
  }

  /** Appends to a text as it arrives. */
  stream() {
    const code = element("code");
    this.place.append(element("pre", { tabIndex: 0 }, code));
    let left = MOST_CHARS;
    return (piece) => {
      if (left > 0) code.append(piece.slice(0, left));
      left -= piece.length;
    };
  }

  #urlOf(blob) {
    const url = URL.createObjectURL(blob);
    this.#urls.push(url);
    return url;
  }
}

function blobOf(base64, type) {
  return new Blob([Uint8Array.from(atob(base64), (char) => char.charCodeAt(0))], { type });
}

/** Media within JSON: speech of chat, and images of chat and of the endpoint for images. */
function showMedia(answer, json, sent) {
  const speechType = AUDIO_TYPES[sent?.audio?.format];
  for (const { message } of json.choices ?? []) {
    if (message?.audio?.data && speechType) answer.play(blobOf(message.audio.data, speechType));
    for (const { image_url: { url } } of message?.images ?? []) {
      answer.draw(blobOf(url.slice(url.indexOf(",") + 1), "image/png"));
    }
  }
  if (!Array.isArray(json.data)) return;
  for (const { b64_json: data } of json.data) if (data) answer.draw(blobOf(data, "image/png"));
}

function shortened(_, value) {
  if (typeof value !== "string" || value.length <= LONGEST_STRING) return value;
  return `${value.slice(0, 40)} … (${value.length} characters)`;
}

async function show(answer, response, sent) {
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("audio/")) return answer.play(await response.blob());
  if (type.startsWith("text/event-stream")) {
    const write = answer.stream();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return undefined;
      write(value);
    }
  }
  const text = await response.text();
  if (!type.startsWith("application/json")) return answer.text(text);
  const json = JSON.parse(text);
  showMedia(answer, json, sent);
  return answer.text(JSON.stringify(json, shortened, 2));
}

function prepare(form) {
  const answer = new Answer(form.querySelector(".response"));
  const send = form.querySelector("[type=submit]");
  const stop = form.querySelector(".stop");
  let aborter = null;
  stop.addEventListener("click", () => aborter?.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.begin();
    send.disabled = true;
    stop.disabled = false;
    aborter = new AbortController();
    const began = performance.now();
    const seconds = () => `${((performance.now() - began) / 1000).toFixed(2)} s`;
    try {
      const { url, options, sent } = requestOf(form);
      const response = await fetch(url, { ...options, signal: aborter.signal });
      const status = `${response.status} ${response.statusText}`.trim();
      answer.status.textContent = `${status}, receiving …`;
      await show(answer, response, sent);
      answer.status.textContent = `${status} after ${seconds()}`;
    } catch (error) {
      const reasons = { AbortError: "Stopped.", SyntaxError: `The body is not JSON: ${error.message}` };
      answer.status.textContent = reasons[error.name] ?? `No response: ${error.message}`;
    } finally {
      send.disabled = false;
      stop.disabled = true;
    }
  });
}

key.value = keptSettings().key ?? "";
key.addEventListener("change", () => {
  keepSettings({ ...keptSettings(), key: key.value });
  nameModel();
});
document.getElementById("access").hidden = false;
document.getElementById("access").addEventListener("submit", (event) => event.preventDefault());
for (const form of document.querySelectorAll("form.try")) {
  prepare(form);
  form.closest("details").hidden = false;
}
nameModel();
