// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** Bars of a side: its label, its rank, the packed columns and the number of their buffers. */
export type Bars = {
  label: string;
  rank: number;
  columns: FrameColumn[];
  buffers: number;
};

/** Column of a packed frame: llmprof.explore.base.messages.pack. */
export type FrameColumn = {
  name: string;
  dtype: string;
  values?: string[] | null;
};

/** Lanes of a rank in a window; first is the index of its first buffer. */
export type Side = {
  rank: number;
  window: [number, number];
  lanes: OverlapLane[];
  names: string[];
  of: string;
  first: number;
};

/** A lane: what it shows, as spans or as bins of classes, and which buffers of its side it has. */
export type OverlapLane = {
  name: string;
  stream: boolean;
  count: number;
  total_ns: number;
  kind: "bins" | "spans";
  buffers: number[];
  classes?: string[] | null;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  choices: {
    asks: Record<string, never>;
    answers: { ranks: number[]; others: number[]; phases: string[]; parts: string[]; events: string };
  };
  /** Buffers: columns of each side after those of the one before. */
  bars: {
    asks: { rank: number; phase?: string | null; against: string };
    answers: { sides: Bars[] };
  };
  /** Buffers: of spans pairs (f8, ns from the window's start), of streams also name (u4) and class (u1); of bins f4. */
  lanes: {
    asks: { rank: number; window?: [number, number] | null; against: string; step?: number | null; pixels: number };
    answers: { sides: Side[]; summary: Record<string, any>[]; whole?: [number, number] | null; chosen: boolean };
  };
  steps: {
    asks: { rank: number; first: number; last: number };
    answers: Record<string, never>;
  };
};

export type Traits = {
  against: string;
  bars: "time" | "share";
  busy: string;
  colours: Record<string, any>;
  default_rank: number | null;
  kernel: string | null;
  layer: number | null;
  only: Record<string, any>;
  phase: string | null;
  rank: number | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
