// SPDX-License-Identifier: Apache-2.0
// Puts the page, its scripts and the WebAssembly module into one HTML file.
//   node pack.mjs FOLDER MODULE.wasm OUT.html
import {readFileSync, writeFileSync} from "node:fs";
import {gzipSync} from "node:zlib";

const [folder, module, out] = process.argv.slice(2);
const script = (name) => {
  const text = readFileSync(`${folder}/${name}`, "utf8");
  if (/<\/script/i.test(text)) throw new Error(`${name}: contains the end of a script element`);
  return text;
};
const parts = {
  "/*TOOL*/": script("tool.js"),
  "/*PAGE*/": script("page.js"),
  "/*MODULE*/": gzipSync(readFileSync(module), {level: 9}).toString("base64"),
};
let page = readFileSync(`${folder}/page.html`, "utf8");
for (const [mark, text] of Object.entries(parts)) {
  if (page.split(mark).length !== 2) throw new Error(`page.html: ${mark} must appear once`);
  page = page.split(mark).join(text);
}
writeFileSync(out, page);
console.log(`${out}: ${page.length} bytes`);
