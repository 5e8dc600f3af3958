// Plays samples in order and reports how many of each item were played.
//
// `clear` empties the queue. Its number comes back in every later report, so the page can tell a
// report that was under way when it cleared from one that was made after.

const REPORT_EVERY_S = 0.05;

class Player extends AudioWorkletProcessor {
  constructor() {
    super();
    this.pieces = [];
    this.offset = 0;
    this.item = null;
    this.played = 0;
    this.unreported = 0;
    this.cleared = 0;
    this.port.onmessage = ({ data }) => {
      if (data.clear) {
        this.cleared = data.clear;
        this.pieces = [];
        this.offset = 0;
        this.report();
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
        this.report();
        this.item = item;
        this.played = 0;
      }
      const count = Math.min(output.length - at, samples.length - this.offset);
      output.set(samples.subarray(this.offset, this.offset + count), at);
      at += count;
      this.offset += count;
      this.played += count;
      this.unreported += count;
      if (this.offset === samples.length) {
        this.pieces.shift();
        this.offset = 0;
      }
    }
    const over = this.unreported > 0 && !this.pieces.length;
    if (over || this.unreported >= sampleRate * REPORT_EVERY_S) this.report();
    return true;
  }

  report() {
    this.unreported = 0;
    const { item, played, cleared } = this;
    this.port.postMessage({ item, played, cleared, waiting: this.pieces.length > 0 });
  }
}

registerProcessor("player", Player);
