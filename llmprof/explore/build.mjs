// Bundles the browser's side of each explorer: one script and one style sheet a widget, in bundles/, committed.
//
//   node llmprof/explore/build.mjs          write the bundles
//   node llmprof/explore/build.mjs --check  exit with 1 and name them where they are stale
//   node llmprof/explore/build.mjs --watch  write them whenever a file changes (ANYWIDGET_HMR=1 reloads widgets)
import { readFile } from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOMS = [
  "header",
  "timeline",
  "layers",
  "overlap",
  "collectives",
  "kernels",
  "compare",
  "requests",
  "ranks",
  "what_if",
];
const BANNER = "/* Bundled from llmprof/explore by `make bundles`; edit the sources there. */";

/** @type {import("esbuild").BuildOptions} */
const options = {
  absWorkingDir: HERE,
  entryPoints: ROOMS.flatMap((room) => [
    { in: `${room}/${room}.mjs`, out: room },
    { in: `${room}/${room}.css`, out: room },
  ]),
  outdir: "bundles",
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  minify: true,
  legalComments: "none",
  banner: { js: BANNER, css: BANNER },
  logLevel: "warning",
};

if (process.argv.includes("--watch")) {
  const context = await esbuild.context({ ...options, logLevel: "info" });
  await context.watch();
} else if (process.argv.includes("--check")) {
  const built = await esbuild.build({ ...options, write: false });
  const stale = [];
  for (const file of built.outputFiles) {
    const committed = await readFile(file.path, "utf8").catch(() => "");
    if (committed !== file.text) stale.push(path.relative(process.cwd(), file.path));
  }
  if (stale.length) {
    process.stderr.write(`Stale bundles, run \`make bundles\`: ${stale.join(", ")}\n`);
    process.exitCode = 1;
  }
} else {
  await esbuild.build(options);
}
