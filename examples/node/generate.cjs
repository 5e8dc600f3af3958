// Ask a question over gRPC, and get the answer as text and as a WAV file:
//   node generate.cjs [--address localhost:50050] [--out answer.wav] [QUESTION]
// The messages are loaded from the repository's proto/ as they are; nothing is generated.

const { writeFileSync } = require("node:fs");
const { join } = require("node:path");
const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    address: { type: "string", default: "localhost:50050" },
    out: { type: "string", default: "answer.wav" },
  },
});
const definitions = loadSync("antiphon/v1/speech.proto", {
  includeDirs: [join(__dirname, "..", "..", "proto")],
  oneofs: true, // `event` names what an event has
  defaults: true, // fields that are empty are there
  longs: Number,
});
const { SpeechService } = grpc.loadPackageDefinition(definitions).antiphon.v1;

function wav(samples, rateHz) {
  const head = Buffer.alloc(44);
  head.write("RIFF");
  head.writeUInt32LE(36 + samples.length, 4);
  head.write("WAVEfmt ", 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20); // PCM
  head.writeUInt16LE(1, 22); // channels
  head.writeUInt32LE(rateHz, 24);
  head.writeUInt32LE(2 * rateHz, 28);
  head.writeUInt16LE(2, 32);
  head.writeUInt16LE(16, 34);
  head.write("data", 36);
  head.writeUInt32LE(samples.length, 40);
  return Buffer.concat([head, samples]);
}

async function main() {
  const client = new SpeechService(options.address, grpc.credentials.createInsecure());
  const text = positionals[0] ?? "What is antiphon?";
  const call = client.Generate({
    messages: [{ role: "user", parts: [{ text }] }],
    modalities: ["text", "audio"],
  });
  const pieces = [];
  let rateHz = 0;
  for await (const response of call) {
    const event = response[response.event];
    if (response.event === "started") rateHz = event.sampleRateHz;
    if (response.event === "text") process.stdout.write(event.text);
    if (response.event === "audio") pieces.push(event.pcm16);
    if (response.event === "error") throw new Error(event.message);
  }
  writeFileSync(options.out, wav(Buffer.concat(pieces), rateHz));
  console.log(`\nThe audio is in ${options.out}.`);
  client.close();
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
