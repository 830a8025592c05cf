// Written from the messages and traits of the widget by `make bundles`. Do not edit.
import type { Model as AnyModel } from "../base/js/model";

/** Ranks whose value lies between two (ns), in numbers and in words, and how often one of them came last. */
export type Bin = {
  low_ns: number;
  high_ns: number;
  ranks: number[];
  words: string;
  last: number;
};

export type Messages = {
  selection: {
    asks: Record<string, never>;
    answers: { file: string; content: string };
  };
  choices: {
    asks: Record<string, never>;
    answers: { kinds: [string, number][]; phases: string[]; ranks: number[] };
  };
  view: {
    asks: { kind: string; phase?: string | null; rank?: number | null; window?: [number, number] | null };
    answers: { count: number; matched: number; histogram: Record<string, [number, number, number][]>; medians: Record<string, number | null>; sizes: Record<string, any>[]; peak_gbps?: number | null; device?: string | null; arrivals: Record<string, any>[]; over_time: Record<string, any>[]; calls: Record<string, any>[] };
  };
  call: {
    asks: { call?: number | null; kind?: string | null; phase?: string | null; ranks?: number[] | null };
    answers: { call?: number | null; rows: Record<string, any>[]; before?: number | null; after?: number | null };
  };
  spread: {
    asks: { measure: "duration" | "late" | "transfer" | "wait"; kind: string; phase?: string | null; window?: [number, number] | null; call?: number | null; ranks?: number[] | null };
    answers: { measure: "duration" | "late" | "transfer" | "wait"; meaning: string; ranks: number; unknown: number; bins: Bin[]; words: string };
  };
  pick: {
    asks: { call: number; kind?: string | null; phase?: string | null };
    answers: { before?: number | null; after?: number | null };
  };
};

export type Traits = {
  busy: string;
  call: number | null;
  colours: Record<string, any>;
  kernel: string | null;
  kind: string | null;
  layer: number | null;
  only: Record<string, any>;
  phase: string | null;
  picked: number[];
  rank: number | null;
  spread: "late" | "wait" | "transfer" | "duration";
  spread_of: "calls" | "call";
  stage: string | null;
  step: number | null;
  theme: "auto" | "light" | "dark";
  window: [number, number] | null;
};

export type Model = AnyModel<Traits, Messages>;
