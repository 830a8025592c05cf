// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** A measure that the colour can show. */
export type RankOption = {
  name: "exposed" | "idle" | "step" | "wait";
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
    answers: { ranks: number; phases: string[]; measures: RankOption[]; groups: Record<string, any>[]; latest: string };
  };
  /** Buffers: values (f4, columns after each other, NaN where there is none). */
  cells: {
    asks: { measure: "exposed" | "idle" | "step" | "wait"; phase?: string | null; steps?: [number, number] | null; rank_range?: [number, number] | null };
    answers: { measure: "exposed" | "idle" | "step" | "wait"; title: string; meaning: string; columns: [number, number, number][]; rows: [number, number][]; condensed: number; banded: number; missing: number; scales: ColourScale[] };
  };
  pick: {
    asks: { measure: "exposed" | "idle" | "step" | "wait"; step: number; rank_range: [number, number] };
    answers: Record<string, never>;
  };
  picked: {
    asks: Record<string, never>;
    answers: { words: string; rows: Record<string, any>[]; more: number };
  };
};

export type Traits = {
  busy: string;
  colours: Record<string, any>;
  kernel: string | null;
  layer: number | null;
  measure: "step" | "wait" | "idle" | "exposed";
  only: Record<string, any>;
  phase: string | null;
  picked: number[];
  rank: number | null;
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
