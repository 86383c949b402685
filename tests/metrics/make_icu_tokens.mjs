// Writes icu_tokens.json: words and characters by ICU, an independent program. Run: node make_icu_tokens.mjs
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const spaced = [
  "Ein Hund läuft, schnell: 3.5 m! Über die Straße (im Regen).",
  "Zwei Mädchen spielen »Fußball« – 20% nass; S-Bahn am Bahnhof/Gleis 7",
  "Ein U.S.-Flugzeug kostet 1.000.000,50 € am 24.11.2026",
  "كلبٌ بُنّيٌّ يجري على الشاطئ، وقطّتان تجلسان؟",
  "ثلاثة نجوم حمراء فوق ٤ دوائر زرقاء۔",
  "एक कुत्ता समुद्र तट पर दौड़ रहा है। दो बिल्लियाँ बैठी हैं॥",
  "강아지가 해변에서 달리고 있다. 고양이 두 마리!",
  "Собака бежит по пляжу; две кошки сидят, из-за дождя",
  "Un chien court sur la plage : l’été, aujourd'hui, qu'il",
  "Köpek sahilde koşuyor; İki kedi IŞIK'ta",
  "Một con chó đang chạy trên bãi biển",
  "כלב רץ על החוף, צה״ל וג'ירפה",
  "can't_stop foo_bar a.b.c 3:45 1,2,3 x2y e-mail@example.com",
  "emoji 🐶👨‍👩‍👧 and 🇩🇪 flags, ½ ² № ™",
  "Cafe\u0301 nai\u0308ve A\u030angstro\u0308m",
  "  two   blanks\tand a tab\nand a line ",
];
const unspaced = [
  "一只棕色的狗在海滩上奔跑，旁边有2个孩子。",
  "「犬が」ビーチで走っている、ｶﾅ と OK！",
  "สุนัขสีน้ำตาลวิ่งบนชายหาด และแมวสองตัว",
  "ຫມາແລ່ນ ၅ ခွေးပြေးနေတယ်",
  ...spaced.filter((text) => !/[\u0900-\u097f]/.test(text)),
];
// Words and characters are compared in composed lower-case text; pieces without a letter or number are no tokens.
const pieces = (text, granularity) =>
  [...new Intl.Segmenter("und", { granularity }).segment(text.normalize("NFC").toLowerCase())]
    .map((found) => found.segment)
    .filter((piece) => /[\p{L}\p{N}]/u.test(piece));
const table = (texts, granularity) => texts.map((text) => [text, pieces(text, granularity)]);
const result = {
  icu: process.versions.icu,
  unicode: table(spaced, "word"),
  characters: table(unspaced, "grapheme"),
};
writeFileSync(fileURLToPath(new URL("icu_tokens.json", import.meta.url)), JSON.stringify(result, null, 1) + "\n");
