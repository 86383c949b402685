// Preparation of images as `onnx_images.py` does it: the same numbers as Pillow, not those of a canvas.

const PRECISION = 22; // bits after the point of Pillow's weights for 8-bit images
const WEIGHTS = {
  1: [3, (x) => (x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)], // Lanczos
  2: [1, (x) => Math.max(0, 1 - Math.abs(x))], // bilinear
  3: [2, cubic],
  4: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)], // box
  5: [1, hamming],
};

function sinc(x) {
  return x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
}

function cubic(x) {
  const a = -0.5;
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

function hamming(x) {
  x = Math.abs(x);
  if (x === 0) return 1;
  return x < 1 ? sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI)) : 0;
}

// Decode an image file: upright, transparency over white. Returns {width, height, levels: [height, width, 3]}.
export async function readImage(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch (error) {
    throw new Error(`This file is no image that the browser can read (${error.message}). Choose a JPEG, PNG or WebP.`);
  }
  const { width, height } = bitmap;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0); // not scaled
  bitmap.close();
  const rgba = context.getImageData(0, 0, width, height).data;
  const levels = new Uint8Array(width * height * 3);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) levels[3 * pixel + channel] = rgba[4 * pixel + channel];
  }
  return { width, height, levels };
}

// Return the pixel values [3, H, W] of an image, by the numbers of `captioner.json`.
export function prepareImage(image, numbers) {
  if (numbers.size !== null) image = resize(image, ...sizeAfter(image, numbers.size), numbers.resample);
  if (numbers.crop_size !== null) image = centerCrop(image, numbers.crop_size.height, numbers.crop_size.width);
  const count = image.width * image.height;
  const values = new Float32Array(3 * count);
  for (let channel = 0; channel < 3; channel++) {
    const mean = Math.fround(numbers.image_mean?.[channel] ?? 0);
    const deviation = Math.fround(numbers.image_std?.[channel] ?? 1);
    for (let pixel = 0; pixel < count; pixel++) {
      const level = Math.fround(image.levels[3 * pixel + channel] * (numbers.rescale_factor ?? 1));
      values[channel * count + pixel] = Math.fround(level - mean) / deviation;
    }
  }
  return { values, height: image.height, width: image.width };
}

// Return width and height after resizing.
function sizeAfter({ width, height }, rule) {
  if ("shortest_edge" in rule) {
    const edge = rule.shortest_edge;
    return width <= height ? [edge, Math.trunc((edge * height) / width)] : [Math.trunc((edge * width) / height), edge];
  }
  if ("max_height" in rule) {
    const scale = Math.min(rule.max_height / height, rule.max_width / width);
    return [Math.trunc(width * scale), Math.trunc(height * scale)];
  }
  return [rule.width, rule.height];
}

// Resize as Pillow 13 does: columns, then rows, both rounded to 8 bits; rows first where that loses many more of them.
// Pillow 12 always begins with the columns, from which single levels differ then.
export function resize(image, width, height, resample) {
  if (resample === 0) return resizeToNearest(image, width, height);
  const lost = image.height - height;
  const rowsFirst = lost > 0 && lost > 2 * (image.width - width);
  if (rowsFirst) image = resizeRows(image, height, resample);
  if (width !== image.width) image = resizeColumns(image, width, resample);
  return height === image.height ? image : resizeRows(image, height, resample);
}

function resizeRows(image, height, resample) {
  return transpose(resizeColumns(transpose(image), height, resample));
}

function resizeToNearest(image, width, height) {
  const levels = new Uint8Array(3 * width * height);
  for (let y = 0; y < height; y++) {
    const row = Math.floor((y + 0.5) * (image.height / height));
    for (let x = 0; x < width; x++) {
      const from = 3 * (row * image.width + Math.floor((x + 0.5) * (image.width / width)));
      levels.set(image.levels.subarray(from, from + 3), 3 * (y * width + x));
    }
  }
  return { width, height, levels };
}

function resizeColumns(image, width, resample) {
  const spans = spansOf(image.width, width, resample);
  const levels = new Uint8Array(3 * width * image.height);
  for (let y = 0; y < image.height; y++) {
    for (let x = 0; x < width; x++) {
      const { first, weights } = spans[x];
      for (let channel = 0; channel < 3; channel++) {
        let sum = 1 << (PRECISION - 1);
        let from = 3 * (y * image.width + first) + channel;
        for (const weight of weights) {
          sum += image.levels[from] * weight;
          from += 3;
        }
        levels[3 * (y * width + x) + channel] = Math.min(255, Math.max(0, sum >> PRECISION));
      }
    }
  }
  return { width, height: image.height, levels };
}

// Return the first column and the weights of the columns that each new column is made of.
function spansOf(size, newSize, resample) {
  const [reach, weightAt] = WEIGHTS[resample];
  const scale = size / newSize;
  const stretch = Math.max(scale, 1);
  const spans = [];
  for (let place = 0; place < newSize; place++) {
    const center = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach * stretch + 0.5));
    const end = Math.min(size, Math.trunc(center + reach * stretch + 0.5));
    const weights = [];
    for (let column = first; column < end; column++) weights.push(weightAt((column - center + 0.5) * (1 / stretch)));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const whole = weights.map((weight) => {
      const share = (total === 0 ? weight : weight / total) * (1 << PRECISION);
      return Math.trunc(share < 0 ? share - 0.5 : share + 0.5);
    });
    spans.push({ first, weights: whole });
  }
  return spans;
}

function transpose({ width, height, levels }) {
  const turned = new Uint8Array(levels.length);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      for (let channel = 0; channel < 3; channel++) {
        turned[3 * (x * height + y) + channel] = levels[3 * (y * width + x) + channel];
      }
    }
  }
  return { width: height, height: width, levels: turned };
}

// Return the centre; a smaller image gets a black rim, the odd line above and left.
function centerCrop(image, height, width) {
  const rim = (wanted, size) => Math.ceil(Math.max(wanted - size, 0) / 2);
  const top = Math.floor((Math.max(image.height, height) - height) / 2) - rim(height, image.height);
  const left = Math.floor((Math.max(image.width, width) - width) / 2) - rim(width, image.width);
  const levels = new Uint8Array(3 * width * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (y + top < 0 || y + top >= image.height || x + left < 0 || x + left >= image.width) continue;
      const from = 3 * ((y + top) * image.width + x + left);
      levels.set(image.levels.subarray(from, from + 3), 3 * (y * width + x));
    }
  }
  return { width, height, levels };
}
