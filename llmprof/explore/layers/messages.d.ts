// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A measure that the color can show. */
export type LayerOption = {
  name: "busy" | "exposed" | "gap" | "host" | "time";
  title: string;
  meaning: string;
};

/** Colour scale of a phase (ns): its ends, the greatest value, and whether it is logarithmic. */
export type ColourScale = {
  phase: string | null;
  low: number;
  high: number;
  most: number;
  log: boolean;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  choices: {
    asks: Record<string, never>;
    answers: { ranks: number[]; stages: string[]; phases: string[]; measures: LayerOption[] };
  };
  /** Buffers: values (f4, columns after each other, NaN where there is none) and outliers (u1). */
  cells: {
    asks: { measure: "busy" | "exposed" | "gap" | "host" | "time"; rank: number; stage?: string | null; phase?: string | null; steps?: [number, number] | null };
    answers: { measure: "busy" | "exposed" | "gap" | "host" | "time"; title: string; meaning: string; rank: number; columns: [number, number, number][]; layers: number[]; kinds: (string | null)[]; condensed: number; outliers: number; missing: number; steps: [number | null, number | null]; diverging: boolean; scales: ColourScale[] };
  };
  pick: {
    asks: { rank: number; step: number; layer: number };
    answers: Record<string, never>;
  };
  cell: {
    asks: { rank: number; step: number; layer: number; stage?: string | null };
    answers: { rank: number; step: number; layer: number; stage?: string | null; slack_ns?: number | null; cell?: Record<string, any> | null; stages: Record<string, any>[]; kernels: Record<string, any>[]; more: number };
  };
  slack: {
    asks: Record<string, never>;
    answers: { why: string };
  };
};

export type Traits = {
  busy: string;
  colours: Record<string, any>;
  default_rank: number | null;
  kernel: string | null;
  layer: number | null;
  measure: "time" | "busy" | "exposed" | "gap" | "host";
  only: Record<string, any>;
  phase: string | null;
  rank: number | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
