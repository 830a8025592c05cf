// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A run: its name, its steps of the phase, the time of a step and until the next (ns), and its parts. */
export type RunBar = {
  name: string;
  steps: number;
  step_ns: number | null;
  parts: StepPart[];
};

/** Part of the time of a step (ns): its group, its words, and the stage of compute or cause of idle time. */
export type StepPart = {
  group: string;
  label: string;
  part: string | null;
  ns: number;
};

/** Waterfall from one run to another: their numbers and its bars. */
export type Way = {
  a: number;
  b: number;
  bars: WaterfallBar[];
};

/** Bar of a waterfall: llmprof.analyze.compare.story.waterfall_rows; null where a run does not have it. */
export type WaterfallBar = {
  group: string;
  label: string;
  part: string | null;
  a_ns: number | null;
  b_ns: number | null;
  delta_ns: number;
  from_ns: number;
  to_ns: number;
  beyond_noise: boolean | null;
};

/** Timeline of a run: rank, step, point of alignment (ns from its start), columns and their first buffer. */
export type Track = {
  name: string;
  rank: number | null;
  step: number | null;
  origin_ns: number | null;
  columns: FrameColumn[];
  first: number;
  note: string;
};

/** Column of a packed frame: llmprof.explore.base.messages.pack. */
export type FrameColumn = {
  name: string;
  dtype: string;
  values?: string[] | null;
};

/** View of the table: two runs, labels that rows are aligned by, filters, a search text and an order. */
export type ComparisonView = {
  pair: [number, number];
  by: string[];
  tolerance: number;
  phase?: string | null;
  rank?: number | null;
  status?: string | null;
  search?: string;
  sort?: string;
};

/** Kernels of a row in both traces, and how many there are in all. */
export type KernelPage = {
  rows: Record<string, any>[];
  total: number;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  story: {
    asks: { pair: [number, number]; phase?: string | null; rank?: number | null };
    answers: { phases: string[]; phase?: string | null; ranks: number[]; words: string[]; context: string[]; runs: RunBar[]; ways: Way[] };
  };
  /** Buffers: columns of the timeline of each side after those of the one before. */
  tracks: {
    asks: { pair: [number, number]; phase?: string | null; rank?: number | null; place?: number | null; layer?: number | null; window?: [number, number] | null };
    answers: { sides: Track[]; lanes: string[]; window: [number, number]; whole: [number, number]; place?: number | null; places: number; layers: number[] };
  };
  table: {
    asks: { view: ComparisonView; count: number };
    answers: { rows: Record<string, any>[]; total: number; all: number; largest?: number | null; counts: Record<string, number> };
  };
  rows: {
    asks: { view: ComparisonView; offset: number; count: number };
    answers: { rows: Record<string, any>[]; offset: number };
  };
  pick: {
    asks: { view: ComparisonView; row: number };
    answers: Record<string, never>;
  };
  /** Buffers: columns of the steps of both traces. */
  details: {
    asks: { picked: Record<string, any>; tolerance: number; pair: [number, number]; rank?: number | null };
    answers: { steps: FrameColumn[][]; kernels: KernelPage };
  };
};

export type Traits = {
  busy: string;
  by: ("stage" | "category" | "layer" | "name")[];
  colours: Record<string, any>;
  kernel: string | null;
  layer: number | null;
  names: string[];
  only: Record<string, any>;
  pair: [number, number];
  phase: string | null;
  picked: Record<string, any> | null;
  place: number | null;
  rank: number | null;
  search: string;
  sort: string;
  stage: string | null;
  status: "slower" | "faster" | "more_time" | "less_time" | "only_b" | "only_a" | "same" | null;
  statuses: Record<string, any>;
  step: number | null;
  theme: "auto" | "light" | "dark";
  tolerance: number;
  window: [number, number] | null;
  zoom: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
