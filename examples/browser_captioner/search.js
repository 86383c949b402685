// Greedy decoding and beam search of one image, with the rules and the bookkeeping of `onnx_search.py`.

const EXCLUDED = -1e9; // added to the score of a hypothesis that must not be chosen
const float = Math.fround; // scores are 32-bit numbers, as in Python
const DEFAULTS = {
  max_new_tokens: 32, min_new_tokens: 0, min_length: 0, num_beams: 1, length_penalty: 1, early_stopping: false,
  repetition_penalty: 1, no_repeat_ngram_size: 0, bad_words_ids: [], suppress_tokens: [], begin_suppress_tokens: [],
  no_immediate_repetition: false, bad_ending_ids: [], trigram_penalty: 0,
};
const WITHOUT_EFFECT = { // values that are accepted; null: any
  num_return_sequences: 1, temperature: null, top_k: null, top_p: null, seed: null, do_sample: false,
};

// Return the options of decoding of a captioner: its own, and those that are given.
export function decodingOptions(defaults, given = {}) {
  const chosen = { ...defaults, ...given };
  for (const [name, value] of Object.entries(chosen)) {
    if (name in DEFAULTS) continue;
    if (!(name in WITHOUT_EFFECT) || ![null, value].includes(WITHOUT_EFFECT[name])) {
      const typed = `${name}=${JSON.stringify(value)}`;
      throw new Error(`This page does not decode with ${typed}. Export a captioner without it.`);
    }
  }
  return { ...DEFAULTS, ...chosen };
}

export function logSoftmax(logits) {
  let largest = -Infinity;
  for (const value of logits) largest = Math.max(largest, value);
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - largest);
  const log = Math.log(sum);
  return logits.map((value) => value - largest - log); // [V], 32-bit
}

// Return the places of the largest values, the largest first, of equal ones the first.
function best(values, count) {
  const kept = [];
  for (let place = 0; place < values.length; place++) {
    if (kept.length === count && !(values[place] > values[kept[count - 1]])) continue;
    let at = kept.length;
    while (at > 0 && values[kept[at - 1]] < values[place]) at--;
    kept.splice(at, 0, place);
    kept.length = Math.min(kept.length, count);
  }
  return kept;
}

// Change scores [V] in place by the rules of decoding; `generated` follows the begin token.
function applyRules(scores, start, generated, options, ends) {
  const tokens = [start, ...generated];
  const forbid = (token) => (scores[token] = -Infinity);
  if (options.repetition_penalty !== 1) {
    for (const token of new Set(tokens)) {
      scores[token] *= scores[token] < 0 ? options.repetition_penalty : 1 / options.repetition_penalty;
    }
  }
  const size = options.no_repeat_ngram_size;
  for (let first = 0; size && first + size <= tokens.length; first++) {
    const isRepeated = (offset) => tokens[first + offset] === tokens[tokens.length - size + 1 + offset];
    if ([...Array(size - 1).keys()].every(isRepeated)) forbid(tokens[first + size - 1]);
  }
  for (const words of options.bad_words_ids) {
    if (words.length === 1 && ends.includes(words[0])) continue;
    const before = words.slice(0, -1);
    const tail = tokens.slice(tokens.length - before.length);
    if (tokens.length >= before.length && before.every((word, place) => word === tail[place])) forbid(words.at(-1));
  }
  if (tokens.length < options.min_length || generated.length < options.min_new_tokens) ends.forEach(forbid);
  options.suppress_tokens.forEach(forbid);
  if (!generated.length) {
    options.begin_suppress_tokens.forEach(forbid);
    return;
  }
  const last = generated.at(-1);
  if (options.no_immediate_repetition) forbid(last);
  if (options.bad_ending_ids.includes(last)) ends.forEach(forbid);
  for (let place = 2; options.trigram_penalty && place < generated.length; place++) {
    if (generated[place - 2] === generated.at(-2) && generated[place - 1] === last) {
      scores[generated[place]] -= options.trigram_penalty;
    }
  }
}

// Return the tokens of the caption. `states.step(rows)` reads rows of tokens and returns their logits, one row each;
// `states.reorder(rows)` lets the rows continue others.
export async function decode(states, start, options, ends) {
  return options.num_beams > 1 ? byBeams(states, start, options, ends) : greedy(states, start, options, ends);
}

async function greedy(states, start, options, ends) {
  const generated = [];
  while (generated.length < options.max_new_tokens) {
    const [scores] = await states.step([[start, ...generated]]);
    applyRules(scores, start, generated, options, ends);
    const [token] = best(scores, 1);
    generated.push(token);
    if (ends.includes(token)) break;
  }
  return generated;
}

// Search with the bookkeeping of transformers: K running and K finished hypotheses.
async function byBeams(states, start, options, ends) {
  const { num_beams: beams, max_new_tokens: width, length_penalty: penalty, early_stopping: early } = options;
  const kept = Math.max(2, 1 + ends.length) * beams;
  let running = Array.from({ length: beams }, (_, place) => ({ tokens: [], score: place ? EXCLUDED : 0 }));
  let finished = Array.from({ length: beams }, () => ({ tokens: [], score: EXCLUDED, done: false }));
  let mayImprove = true;
  const [first] = await states.step([[start]]);
  states.reorder(Array(beams).fill(0));
  let logits = Array.from({ length: beams }, () => first);
  for (let step = 0; step < width; step++) {
    const candidates = candidatesOf(running, logits, kept, start, options, ends);
    candidates.forEach((one, place) => {
      one.ends = ends.includes(one.tokens.at(-1)) || step + 1 >= width;
      one.goingOn = float(one.score + (one.ends ? EXCLUDED : 0));
      one.done = one.ends && place < beams; // only the best K candidates may finish
    });
    const order = best(candidates.map((one) => one.goingOn), beams);
    const isFull = early === true && finished.every((one) => one.done);
    const ranked = candidates.map((one) => {
      let score = float(one.score / float((step + 1) ** penalty));
      for (const excluded of [!one.done, !mayImprove, isFull]) score = float(score + (excluded ? EXCLUDED : 0));
      return { tokens: one.tokens, score, done: one.done };
    });
    const both = [...finished, ...ranked];
    finished = best(both.map((one) => one.score), beams).map((place) => both[place]);
    running = order.map((place) => ({ ...candidates[place], score: candidates[place].goingOn }));
    const longest = early === "never" && penalty > 0 ? width : step + 1;
    const reachable = float(running[0].score / float(longest ** penalty));
    const least = Math.min(...finished.map((one) => one.score));
    mayImprove &&= finished.some((one) => reachable > (one.done ? least : EXCLUDED));
    const isNowFull = early === true && finished.every((one) => one.done);
    if (!mayImprove || isNowFull || candidates.every((one) => one.ends)) break;
    states.reorder(running.map((one) => one.parent));
    logits = await states.step(running.map((one) => [start, ...one.tokens]));
  }
  return finished[0].tokens;
}

// Return the best continuations of all beams, the best first.
function candidatesOf(running, logits, kept, start, options, ends) {
  const found = running.flatMap((beam, parent) => {
    const scores = logSoftmax(logits[parent]);
    applyRules(scores, start, beam.tokens, options, ends);
    const summed = scores.map((score) => score + beam.score);
    return best(summed, kept).map((token) => ({ parent, tokens: [...beam.tokens, token], score: summed[token] }));
  });
  return best(found.map((one) => one.score), kept).map((place) => found[place]);
}
