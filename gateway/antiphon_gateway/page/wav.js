// Recordings of 16-bit samples at the rate of the realtime API's audio, as WAV files.

import { RATE_HZ } from "./sound.js";

const HEAD_BYTES = 44;
const SAMPLE_BYTES = 2;

/** A mono file of pieces of samples. */
export function wavFile(pieces) {
  const bytes = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  const head = new DataView(new ArrayBuffer(HEAD_BYTES));
  const write = (at, text) => [...text].forEach((char, i) => head.setUint8(at + i, char.charCodeAt(0)));
  write(0, "RIFF");
  head.setUint32(4, HEAD_BYTES - 8 + bytes, true);
  write(8, "WAVEfmt ");
  head.setUint32(16, 16, true); // bytes of the format
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true); // channels
  head.setUint32(24, RATE_HZ, true);
  head.setUint32(28, RATE_HZ * SAMPLE_BYTES, true);
  head.setUint16(32, SAMPLE_BYTES, true);
  head.setUint16(34, 8 * SAMPLE_BYTES, true);
  write(36, "data");
  head.setUint32(40, bytes, true);
  return new Blob([head, ...pieces], { type: "audio/wav" });
}

/** Any recording that the browser can read, as samples at RATE_HZ, its channels mixed. */
export async function readRecording(data) {
  const context = new OfflineAudioContext(1, 1, RATE_HZ);
  const decoded = await context.decodeAudioData(data);
  const mixed = new Int16Array(decoded.length);
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, at) => decoded.getChannelData(at));
  for (let at = 0; at < mixed.length; at += 1) {
    const mean = channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length;
    mixed[at] = Math.round(Math.max(-1, Math.min(1, mean)) * 32767);
  }
  return mixed;
}
