// How far a conversation is, so that another gateway can go on with it.
//
// The gateway tells a token, and how many of the page's commands it has carried out by then. Those
// behind them are held, within bounds, and sent again to the gateway that goes on.

const MOST_AUDIO_CHARS = 4 << 20; // of speech that is no message yet; the oldest is not sent again
const MOST_COMMANDS = 256; // others that nobody has carried out; with more nothing is resumed
const SAMPLES_PER_MS = 24;
const SAMPLE_BYTES = 2;
const AUDIO = "input_audio_buffer.append";

const bytesOf = (base64) => (base64.length * 3) / 4 - (base64.match(/=*$/)[0].length);

/** Give it every command and every event of one conversation, over all gateways that have it. */
export class Position {
  #token = "";
  #count = 0; // commands that this gateway has been sent
  #done = 0;
  #missed = 0; // the last one that is not held
  #audio = []; // [number, command]
  #audioChars = 0;
  #others = [];
  #delivered = new Map(); // by the item's id
  #ended = new Set(); // IDs of items and responses whose end the token does not include yet

  get resumable() {
    return this.#token !== "" && this.#missed <= this.#done;
  }

  /** The first event for the gateway that goes on. */
  get resumption() {
    const delivered = [...this.#delivered].map(([item_id, { text, bytes }]) => ({
      item_id,
      text,
      audio_ms: bytes / SAMPLE_BYTES / SAMPLES_PER_MS,
    }));
    return { type: "antiphon.conversation.resume", token: this.#token, delivered };
  }

  /** A command is about to be sent. */
  sent(command) {
    this.#count += 1;
    if (command.type !== AUDIO) {
      this.#others.push([this.#count, command]);
      if (this.#others.length > MOST_COMMANDS) [this.#missed] = this.#others.shift();
      return;
    }
    this.#audio.push([this.#count, command]);
    this.#audioChars += command.audio.length;
    while (this.#audioChars > MOST_AUDIO_CHARS) this.#dropAudio();
  }

  /** Another gateway has the conversation: the commands that it has to be sent, in their order. */
  beginAgain() {
    const held = [...this.#audio, ...this.#others].sort(([one], [other]) => one - other);
    this.#audio = [];
    this.#others = [];
    this.#count = this.#done = this.#missed = this.#audioChars = 0;
    const commands = held.map(([, command]) => command);
    for (const command of commands) this.sent(command);
    return commands;
  }

  /** An event has come. */
  note(event) {
    switch (event.type) {
      case "antiphon.conversation.saved":
        this.#save(event);
        break;
      case "response.output_text.delta":
      case "response.output_audio_transcript.delta":
        this.#of(event).text += event.delta;
        break;
      case "response.output_audio.delta":
        this.#of(event).bytes += bytesOf(event.delta);
        break;
      case "response.output_item.done":
        this.#ended.add(event.item.id);
        break;
      case "response.done":
        this.#ended.add(event.response.id);
    }
  }

  /**
   * Whether an event ends what has ended already. A gateway that is lost between such an end and its
   * next token leaves the end to the gateway that continues, which reports the response as lost.
   */
  isRepeated({ type, item, response }) {
    if (type === "response.output_item.done") return this.#ended.has(item.id);
    return type === "response.done" && this.#ended.has(response.id);
  }

  #of({ item_id, response_id }) {
    if (!this.#delivered.has(item_id)) {
      this.#delivered.set(item_id, { response: response_id, text: "", bytes: 0 });
    }
    return this.#delivered.get(item_id);
  }

  #save({ token, commands, audio_commands: audioCommands }) {
    this.#token = token ?? "";
    this.#done = commands;
    for (const [id, { response }] of this.#delivered) {
      if (this.#ended.has(id) || this.#ended.has(response)) this.#delivered.delete(id);
    }
    this.#ended.clear();
    while (this.#audio.length && this.#audio[0][0] <= audioCommands) this.#dropAudio();
    while (this.#others.length && this.#others[0][0] <= commands) this.#others.shift();
  }

  #dropAudio() {
    const [, command] = this.#audio.shift();
    this.#audioChars -= command.audio.length;
  }
}
