// The pane with the realtime events that the page has sent and received.

const MOST_EVENTS = 500;
const MOST_CHARS = 2000; // of one string

const shortened = (_, value) =>
  typeof value === "string" && value.length > MOST_CHARS ? `(${value.length} characters)` : value;
const withoutSound = (event) => {
  const sound = event.type.endsWith("audio.delta") ? "delta" : "audio";
  const holds = typeof event[sound] === "string" && /audio\.delta$|buffer\.append$/.test(event.type);
  return holds ? { ...event, [sound]: `(${event[sound].length} characters of base64)` } : event;
};

/** A page that was not loaded by https, nor from this machine, has no clipboard but the old one. */
async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const source = document.createElement("textarea");
  source.value = text;
  document.body.append(source);
  source.select();
  document.execCommand("copy");
  source.remove();
}

/** Notes events and shows those that match the filter. Equal types in a row are one line. */
export class EventLog {
  #lines = [];
  #began = performance.now();

  constructor({ list, filter, copy, clear }) {
    this.list = list;
    this.filter = filter;
    // It has no size while its pane is closed.
    new ResizeObserver(() => this.#showEnd()).observe(list);
    filter.addEventListener("input", () => this.#filterAll());
    clear.addEventListener("click", () => this.clear());
    copy.addEventListener("click", async () => {
      await copyText(this.text);
      copy.textContent = "Copied";
      copy.addEventListener("blur", () => (copy.textContent = "Copy"), { once: true });
    });
  }

  /** The lines that match, as JSON, one a line. */
  get text() {
    return this.#lines
      .filter(({ element }) => !element.hidden)
      .map(({ direction, atMs, count, json }) => `${JSON.stringify({ direction, at_ms: atMs, count })} ${json}`)
      .join("\n");
  }

  note(direction, event) {
    const last = this.#lines.at(-1);
    const json = JSON.stringify(withoutSound(event), shortened);
    if (last?.type === event.type && last.direction === direction && /delta|append/.test(event.type)) {
      last.count += 1;
      last.json = json;
      last.times.textContent = `×${last.count}`;
    } else {
      const line = { direction, type: event.type, atMs: Math.round(performance.now() - this.#began), count: 1, json };
      this.#show(line);
      this.#lines.push(line);
      if (this.#lines.length > MOST_EVENTS) this.#lines.shift().element.remove();
    }
  }

  clear() {
    this.#lines = [];
    this.list.replaceChildren();
  }

  #show(line) {
    const atEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 48;
    line.element = document.createElement("li");
    const folded = document.createElement("details");
    const summary = document.createElement("summary");
    const part = (className, text) => {
      const made = document.createElement("span");
      made.className = className;
      made.textContent = text;
      summary.append(made);
      return made;
    };
    part("at", `${(line.atMs / 1000).toFixed(2)} s`);
    part(line.direction, line.direction === "sent" ? "↑ sent" : "↓ received");
    part("type", line.type);
    line.times = part("times", "");
    const body = document.createElement("pre");
    folded.addEventListener("toggle", () => {
      body.textContent = folded.open ? JSON.stringify(JSON.parse(line.json), null, 2) : "";
    });
    folded.append(summary, body);
    line.element.append(folded);
    line.element.hidden = !this.#matches(line);
    this.list.append(line.element);
    if (atEnd) this.#showEnd();
  }

  #showEnd() {
    this.list.scrollTop = this.list.scrollHeight;
  }

  #matches({ direction, json }) {
    return `${direction} ${json}`.toLowerCase().includes(this.filter.value.trim().toLowerCase());
  }

  #filterAll() {
    for (const line of this.#lines) line.element.hidden = !this.#matches(line);
  }
}
