// Microphone to 16-bit samples at the context's rate, in pieces of 40 ms.

const PIECE_S = 0.04;

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(Math.round(sampleRate * PIECE_S));
    this.filled = 0;
  }

  process(inputs) {
    const samples = inputs[0][0];
    if (!samples) return true;
    for (const sample of samples) {
      this.piece[this.filled++] = Math.round(Math.max(-1, Math.min(1, sample)) * 32767);
      if (this.filled === this.piece.length) {
        this.port.postMessage(this.piece.slice().buffer);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("capture", Capture);
