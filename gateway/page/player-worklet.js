// Plays what it is handed, in order, and says how much of each answer's audio was played.

const TOLD_EVERY_S = 0.05;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pieces = [];
    this.offset = 0;
    this.item = null;
    this.played = 0;
    this.untold = 0;
    this.port.onmessage = ({ data }) => {
      if (data.clear) {
        this.tell();
        this.pieces = [];
        this.offset = 0;
      } else {
        this.pieces.push(data);
      }
    };
  }

  process(_inputs, outputs) {
    const output = outputs[0][0];
    let at = 0;
    while (at < output.length && this.pieces.length) {
      const { item, samples } = this.pieces[0];
      if (item !== this.item) {
        this.tell();
        this.item = item;
        this.played = 0;
      }
      const count = Math.min(output.length - at, samples.length - this.offset);
      output.set(samples.subarray(this.offset, this.offset + count), at);
      at += count;
      this.offset += count;
      this.played += count;
      this.untold += count;
      if (this.offset === samples.length) {
        this.pieces.shift();
        this.offset = 0;
      }
    }
    const over = this.untold > 0 && !this.pieces.length;
    if (over || this.untold >= sampleRate * TOLD_EVERY_S) this.tell();
    return true;
  }

  tell() {
    this.untold = 0;
    this.port.postMessage({ item: this.item, played: this.played, waiting: this.pieces.length > 0 });
  }
}

registerProcessor("player", Player);
