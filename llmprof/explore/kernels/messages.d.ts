// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** View of the table: filters, labels that divide launches into rows, a search text, an order, a window. */
export type KernelsView = {
  rank?: number | null;
  step?: number | null;
  phase?: string | null;
  layer?: number | null;
  stage?: string | null;
  stream?: number | null;
  category?: string | null;
  by?: string[];
  search?: string;
  sort?: string;
  window?: [number, number] | null;
};

/** Column of a packed frame: llmprof.explore.base.messages.pack. */
export type FrameColumn = {
  name: string;
  dtype: string;
  values?: string[] | null;
};

/** Profiled launches, or operators, on the roofline of a device. */
export type Roofline = {
  points: Record<string, any>[];
  bandwidth: number | null;
  peaks: Record<string, number>;
  device: string | null;
};

/** Share of a peak (%), and the metric whose glossary text explains it. */
export type PeakBar = {
  label: string;
  share: number | null;
  metric: string;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  /** Buffers: time over the trace of each row (u1), the same number of points a row. */
  table: {
    asks: { view: KernelsView; count: number; kernel?: string | null };
    answers: { rows: Record<string, any>[]; total: number; at?: number | null; launches: number; total_ns: number; options: Record<string, (number | string)[]>; unmatched: number };
  };
  slack: {
    asks: Record<string, never>;
    answers: { why: string };
  };
  /** Buffers: time over the trace of each row (u1), the same number of points a row. */
  rows: {
    asks: { view: KernelsView; offset: number; count: number };
    answers: { rows: Record<string, any>[]; offset: number };
  };
  pick: {
    asks: { view: KernelsView; row: number };
    answers: Record<string, never>;
  };
  launch: {
    asks: { event: number };
    answers: Record<string, never>;
  };
  /** Buffers: the launches' columns. */
  kernel: {
    asks: { view: KernelsView; kernel: string; of: Record<string, any> };
    answers: { name: string; label: string; category?: string | null; count: number; total_ns: number; mean_ns?: number | null; least_ns?: number | null; most_ns?: number | null; condensed: boolean; columns: FrameColumn[]; span?: [number, number] | null; grids: Record<string, any>[] };
  };
  operator: {
    asks: { event: number };
    answers: { row?: number | null };
  };
  shapes: {
    asks: { kernel: string; rank?: number | null };
    answers: { rows: Record<string, any>[]; why: string; total?: number | null; roofline?: Roofline | null };
  };
  metrics: {
    asks: { kernel: string; kernel_id?: number | null };
    answers: { launches: Record<string, any>[]; note: string; chosen?: number | null; speed?: Record<string, any> | null; bars?: PeakBar[] | null; roofline?: Roofline | null; stalls?: Record<string, any>[] | null; rules?: Record<string, any>[] | null };
  };
  values: {
    asks: { kernel_id: number; search: string };
    answers: { rows: Record<string, any>[]; total: number };
  };
  explain: {
    asks: { metric: string };
    answers: { title: string; meaning: string; good: string; action: string; source: string };
  };
  command: {
    asks: { program: string; view: KernelsView; kernel: string; of: Record<string, any> };
    answers: { command: string };
  };
};

export type Traits = {
  busy: string;
  by: ("phase" | "stage" | "layer" | "stream" | "rank")[];
  category: string | null;
  colours: Record<string, any>;
  event: number | null;
  has_metrics: boolean;
  hidden_columns: string[];
  kernel: string | null;
  layer: number | null;
  of: Record<string, any>;
  only: Record<string, any>;
  phase: string | null;
  program: string;
  rank: number | null;
  search: string;
  sort: string;
  stage: string | null;
  step: number | null;
  stream: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
