// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** What the table shows: labels that rows are aligned by, filters, a text and an order. */
export type Shown = {
  by: string[];
  tolerance: number;
  phase?: string | null;
  status?: string | null;
  search?: string;
  sort?: string;
};

/** Bars of a phase: numbers of steps and the time by stage (ns) in both traces. */
export type Phase = {
  phase: string;
  a_steps: number | null;
  b_steps: number | null;
  stages: Record<string, any>[];
};

/** Column of a packed frame: llmprof.explore.base.messages.pack. */
export type Column = {
  name: string;
  dtype: string;
  values?: string[] | null;
};

/** Kernels of a row in both traces, and how many there are in all. */
export type Kernels = {
  rows: Record<string, any>[];
  total: number;
};

export type Messages = {
  table: {
    asks: { view: Shown; count: number };
    answers: { rows: Record<string, any>[]; total: number; all: number; largest?: number | null; counts: Record<string, number>; phases: string[]; bars: Phase[] };
  };
  rows: {
    asks: { view: Shown; offset: number; count: number };
    answers: { rows: Record<string, any>[]; offset: number };
  };
  pick: {
    asks: { view: Shown; row: number };
    answers: Record<string, never>;
  };
  /** Buffers: columns of the steps of both traces. */
  details: {
    asks: { picked: Record<string, any>; tolerance: number };
    answers: { steps: Column[][]; kernels: Kernels };
  };
};

export type Traits = {
  busy: string;
  by: ("stage" | "category" | "layer" | "name")[];
  colours: Record<string, any>;
  layer: number | null;
  names: string[];
  phase: string | null;
  picked: Record<string, any> | null;
  rank: number | null;
  search: string;
  sort: string;
  stage: string | null;
  status: "slower" | "faster" | "only_b" | "only_a" | "same" | null;
  statuses: Record<string, any>;
  step: number | null;
  theme: "auto" | "light" | "dark";
  tolerance: number;
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
