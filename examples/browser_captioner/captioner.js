// A captioner of an exported folder, run by onnxruntime-web in one thread.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { prepareImage, readImage } from "./image.js";
import { decode, decodingOptions } from "./search.js";

const FORMAT = 1; // of the exported folder
const PAST = "past_key_values.";
const PRESENT = "present.";

ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;

// Load the captioner of an exported folder.
export async function loadCaptioner(folder) {
  const facts = JSON.parse(new TextDecoder().decode(await fetchFile(folder, "captioner.json")));
  if (facts.format !== FORMAT) {
    throw new Error(`captioner.json has the format ${facts.format}, expected ${FORMAT}. Export the captioner again.`);
  }
  if (facts.image === null) {
    throw new Error("This captioner reads regions, and the page has images. Export another one.");
  }
  const files = {};
  for (const [name, digest] of Object.entries(facts.files)) {
    files[name] = await fetchFile(folder, name);
    if (globalThis.crypto.subtle && (await sha256(files[name])) !== digest) {
      throw new Error(`${name} is damaged, or is a file of another export. Copy the whole folder again.`);
    }
  }
  const [encoder, decoder] = await Promise.all(
    ["encoder_model", "decoder_model_merged"].map((name) => ort.InferenceSession.create(files[facts.graphs[name]])),
  );
  const tokenizer = JSON.parse(new TextDecoder().decode(files["tokenizer.json"]));
  return new Captioner(facts, encoder, decoder, tokenizer);
}

async function fetchFile(folder, name) {
  const response = await fetch(`${folder}/${name}`, { cache: "no-cache" }); // another export has the same names
  if (!response.ok) {
    const command = `hf-captioners export MODEL --output_dir ${folder}`;
    throw new Error(`${folder}/${name} is missing (${response.status}). Export a captioner: ${command}`);
  }
  return new Uint8Array(await response.arrayBuffer());
}

async function sha256(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

class Captioner {
  constructor(facts, encoder, decoder, tokenizer) {
    Object.assign(this, { facts, encoder, decoder });
    this.textOf = textWriter(tokenizer, facts);
    this.options = decodingOptions(facts.generation);
  }

  // Caption an image file; `given` are options of decoding.
  async caption(blob, given = {}) {
    const options = decodingOptions(this.facts.generation, given);
    const { values, height, width } = this.prepare(await readImage(blob));
    const encoded = await this.encoder.run({ pixel_values: new ort.Tensor("float32", values, [1, 3, height, width]) });
    const states = new DecoderStates(this.decoder, encoded, this.facts.reads_all_tokens);
    const tokens = await decode(states, this.facts.tokens.start, options, this.facts.tokens.end);
    return this.textOf(tokens);
  }

  prepare(image) {
    return prepareImage(image, this.facts.image);
  }
}

// What the decoder reads at every step: encoded images, and the states of the text rows. An input that the encoder
// returns starts with that value, a state of the text rows that it does not return starts empty.
class DecoderStates {
  constructor(decoder, encoded, readsAllTokens) {
    Object.assign(this, { decoder, readsAllTokens, values: {}, ofRows: [] });
    for (const { name, shape } of decoder.inputMetadata) {
      if (name === "input_ids") continue;
      if (shape[0] === "rows") this.ofRows.push(name);
      const empty = shape.map((size) => ({ rows: 1, past: 0 })[size] ?? size);
      this.values[name] = encoded[name] ?? new ort.Tensor("float32", new Float32Array(0), empty);
    }
  }

  // Read the last token of rows of tokens; return the logits of the next one, an array of [V].
  async step(rows) {
    const read = this.readsAllTokens ? rows : rows.map((tokens) => tokens.slice(-1));
    const ids = BigInt64Array.from(read.flat(), BigInt);
    const inputs = { input_ids: new ort.Tensor("int64", ids, [rows.length, read[0].length]), ...this.values };
    const found = await this.decoder.run(inputs);
    for (const [name, value] of Object.entries(found)) {
      if (name.startsWith(PRESENT)) this.values[PAST + name.slice(PRESENT.length)] = value;
    }
    const size = found.logits.dims.at(-1);
    return rows.map((_, row) => found.logits.data.slice(row * size, (row + 1) * size)); // [rows, 1, V]
  }

  // Let the text rows continue the rows `rows`, which may be repeated.
  reorder(rows) {
    for (const name of this.ofRows) {
      const { data, dims, type } = this.values[name];
      const size = data.length / dims[0];
      const chosen = new data.constructor(rows.length * size);
      rows.forEach((row, place) => chosen.set(data.subarray(row * size, (row + 1) * size), place * size));
      this.values[name] = new ort.Tensor(type, chosen, [rows.length, ...dims.slice(1)]);
    }
  }
}

// Return the function that turns tokens into a caption.
function textWriter(tokenizer, facts) {
  const texts = new Map(Object.entries(tokenizer.model.vocab).map(([text, token]) => [token, text]));
  const special = new Set();
  for (const { id, content, special: isSpecial } of tokenizer.added_tokens) {
    texts.set(id, content);
    if (isSpecial) special.add(id);
  }
  const kind = tokenizer.decoder?.type ?? null;
  if (![null, "ByteLevel"].includes(kind)) throw new Error(`The page has no decoder ${kind} of tokens.`);
  const joined = kind === null ? (words) => words.join(" ") : byteLevelText();
  return (tokens) => {
    const end = tokens.findIndex((token) => facts.tokens.end.includes(token));
    const kept = (end < 0 ? tokens : tokens.slice(0, end)).filter((token) => texts.has(token) && !special.has(token));
    const text = joined(kept.map((token) => texts.get(token))).trim();
    if (!facts.text.merge_repeated_words) return text;
    return text.split(/\s+/).filter((word, place, words) => word !== words[place - 1]).join(" ");
  };
}

// Return the function that joins tokens whose characters stand for bytes, as those of GPT-2.
function byteLevelText() {
  const isShown = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  const bytes = new Map();
  let others = 256;
  for (let byte = 0; byte < 256; byte++) bytes.set(String.fromCodePoint(isShown(byte) ? byte : others++), byte);
  const byteOf = (character) => bytes.get(character);
  return (tokens) => new TextDecoder().decode(Uint8Array.from([...tokens.join("")], byteOf));
}
