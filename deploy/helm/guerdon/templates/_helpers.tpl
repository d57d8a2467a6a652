{{/* Labels that a selector may use: they never change. Pods have no others, lest each new chart restarts all of them.
     Takes (dict "root" $ "component" "math"). */}}
{{- define "guerdon.selector" -}}
app.kubernetes.io/name: guerdon
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "guerdon.labels" -}}
{{ include "guerdon.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* process_reward -> guerdon-process-reward */}}
{{- define "guerdon.name" -}}
{{ include "guerdon.short" (printf "%s-%s" .root.Release.Name .component) }}
{{- end }}

{{/* A name for Services and whatever gives pods theirs: 52 characters, so that a hash or an index still fits behind it. */}}
{{- define "guerdon.short" -}}
{{- $name := . | replace "_" "-" | replace "." "-" -}}
{{ ternary $name (printf "%s-%s" ($name | trunc 43 | trimSuffix "-") ($name | sha256sum | trunc 8)) (le (len $name) 52) }}
{{- end }}

{{/* Numbers as YAML 1.1 reads them: 1e-06 without a dot would be a text. */}}
{{- define "guerdon.numbers" -}}
{{ regexReplaceAll "(?m)((?:^|: |- )-?[0-9]+)(e[-+][0-9]+)$" . "${1}.0${2}" }}
{{- end }}

{{/* A service's block over the defaults. Takes (dict "root" $ "service" .block); YAML. */}}
{{- define "guerdon.settled" -}}
{{ mergeOverwrite (deepCopy .root.Values.serviceDefaults) (deepCopy (.service | default dict)) | toYaml }}
{{- end }}

{{/* The build with CUDA has a tag that says so. Takes (dict "root" $ "image" .image "component" "math" "gpu" 0). */}}
{{- define "guerdon.image" -}}
{{- $image := .root.Values.image -}}
{{- $repository := printf "%s/guerdon-%s" $image.registry (default .component .image.target | replace "_" "-") -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion $image.tag }}{{ ternary "-cuda" "" (gt (int .gpu) 0) }}
{{- end }}
{{- end }}

{{/* The restricted Pod Security profile, for the pod. */}}
{{- define "guerdon.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with int .Values.runAsUser }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* And for each container. */}}
{{- define "guerdon.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  runAsNonRoot: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Of the node's disk: /tmp unless it is memory, and the logs that the kubelet keeps (5 files of 10 MiB). The request is
     the limit, lest pods fill a disk together. Takes what has resources, gpu and tmp; each may be missing. */}}
{{- define "guerdon.resources" -}}
{{- $tmp := .tmp | default dict -}}
{{- $disk := printf "%dMi" (add 64 (ternary 0 (include "guerdon.mebibytes" (default "0" $tmp.size)) (eq (default "" $tmp.medium) "Memory"))) -}}
{{- $limits := dict "ephemeral-storage" $disk -}}
{{- if .gpu -}}
{{- $_ := set $limits "nvidia.com/gpu" .gpu -}}
{{- end -}}
{{- $limits = mergeOverwrite $limits (deepCopy (.resources.limits | default dict)) -}}
{{- $requests := mergeOverwrite (dict "ephemeral-storage" (get $limits "ephemeral-storage")) (deepCopy (.resources.requests | default dict)) -}}
resources: {{- toYaml (dict "requests" $requests "limits" $limits) | nindent 2 }}
{{- end }}

{{/* 20Gi -> 20480, rounded up. */}}
{{- define "guerdon.mebibytes" -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $number := regexFind "^[0-9.]+" (toString .) | float64 -}}
{{ divf (mulf $number (get $units (regexFind "[A-Za-z]*$" (toString .)))) 1048576 | ceil | int64 }}
{{- end }}

{{/* Where the queue is: REDIS_PASSWORD and the variable named, or the variable from a secret. */}}
{{- define "guerdon.queueEnv" -}}
{{- if .secret -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: url}}
{{- else if .root.Values.redis.enabled -}}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .root.Values.redis.secret }}, key: password}}
- name: {{ .variable }}
  value: redis://:$(REDIS_PASSWORD)@{{ include "guerdon.name" (dict "root" .root "component" "redis") }}:6379/0
{{- else -}}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.redis.external.secret }}, key: url}}
{{- end }}
{{- end }}

{{/* A folder that one node alone can mount keeps the pods that share it together: as a label of theirs, and as affinity.
     Takes the root. */}}
{{- define "guerdon.together" -}}
{{- if eq .Values.data.accessMode "ReadWriteOnce" }}guerdon.dev/data: shared{{ end -}}
{{- end }}

{{- define "guerdon.affinity" -}}
{{- with include "guerdon.together" . -}}
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app.kubernetes.io/instance: {{ $.Release.Name }}, {{ . }}}}
{{- end }}
{{- end }}

{{/* The secret with the authority of an external Redis; nothing without one. */}}
{{- define "guerdon.redisCa" -}}
{{- if not .Values.redis.enabled }}{{ .Values.redis.external.ca }}{{ end -}}
{{- end }}

{{- define "guerdon.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "guerdon.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The classes are of the whole cluster: their names hold the namespace. */}}
{{- define "guerdon.priorityClass" -}}
{{ printf "%s-%s-%s" .root.Release.Namespace .root.Release.Name .class }}
{{- end }}

{{- define "guerdon.priority" -}}
{{- $classes := .root.Values.priorityClasses -}}
{{- with get $classes .class | default (ternary (include "guerdon.priorityClass" .) "" $classes.create) -}}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Variables of the values; text may be a template. Takes (dict "root" $ "env" .env). */}}
{{- define "guerdon.env" -}}
{{- with .env }}
{{ tpl (toYaml .) $.root }}
{{- end }}
{{- end }}

{{/* /dev/shm. Takes (dict "shm" .shm). */}}
{{- define "guerdon.shm" -}}
{{- with .shm }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ . }}}
{{- end }}
{{- end }}
