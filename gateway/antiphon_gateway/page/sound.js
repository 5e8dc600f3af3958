// The microphone and the loudspeaker, both at the rate of the realtime API's audio.

export const RATE_HZ = 24000;

const here = (name) => new URL(name, import.meta.url).href;

/** Plays samples; `playedMs(item)` is how much of an item has been heard. */
export class Speaker {
  static async open(onChange) {
    const context = new AudioContext({ sampleRate: RATE_HZ });
    await context.audioWorklet.addModule(here("player-worklet.js"));
    return new Speaker(context, onChange);
  }

  constructor(context, onChange) {
    this.context = context;
    this.analyser = new AnalyserNode(context, { fftSize: 2048 });
    this.node = new AudioWorkletNode(context, "player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.connect(this.analyser).connect(context.destination);
    this.heard = { item: null, played: 0, waiting: false };
    this.cleared = 0;
    this.node.port.onmessage = ({ data }) => {
      if (data.cleared !== this.cleared) return;
      this.heard = data;
      onChange();
    };
  }

  get playing() {
    return this.heard.waiting;
  }

  play(item, pcm16) {
    const samples = Float32Array.from(pcm16, (sample) => sample / 32768);
    this.heard = { ...this.heard, waiting: true };
    this.node.port.postMessage({ item, samples }, [samples.buffer]);
  }

  playedMs(item) {
    return this.heard.item === item ? Math.floor((this.heard.played / RATE_HZ) * 1000) : 0;
  }

  clear() {
    this.cleared += 1;
    this.node.port.postMessage({ clear: this.cleared });
    this.heard = { ...this.heard, waiting: false };
  }
}

/** Hands 16-bit samples to `onSamples` until it is closed. */
export class Microphone {
  static async open(onSamples) {
    if (!navigator.mediaDevices) {
      throw new Error("the microphone needs https, or localhost");
    }
    const stream = await navigator.mediaDevices.getUserMedia({
      audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true },
    });
    const context = new AudioContext({ sampleRate: RATE_HZ });
    try {
      await context.audioWorklet.addModule(here("capture-worklet.js"));
      return new Microphone(stream, context, onSamples);
    } catch (error) {
      stream.getTracks().forEach((track) => track.stop());
      await context.close();
      throw error;
    }
  }

  constructor(stream, context, onSamples) {
    this.stream = stream;
    this.context = context;
    this.analyser = new AnalyserNode(context, { fftSize: 2048 });
    const source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    const capture = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
    capture.port.onmessage = ({ data }) => onSamples(new Int16Array(data));
    source.connect(this.analyser).connect(capture);
  }

  async close() {
    this.stream.getTracks().forEach((track) => track.stop());
    await this.context.close();
  }
}

/** The bytes of an array to base64, as of 16-bit little-endian samples. */
export function toBase64(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

/** Base64 to 16-bit little-endian samples. */
export function fromBase64(text) {
  return new Int16Array(Uint8Array.from(atob(text), (char) => char.charCodeAt(0)).buffer);
}
